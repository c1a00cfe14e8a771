"""Power modes: searched on emulated boards, switched for deadlines, measured as CPU shares.

CPU shares and the example need permission to create cgroups.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.heterogeneous_fleet import workers
from examples.heterogeneous_fleet.__main__ import run
from examples.heterogeneous_fleet.rounds import Round
from profiler.zoo import recipes as zoo
from synergai.errors import NotSupported
from tests.acceptance.profile_search import search_board
from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import AGX_XAVIER, XAVIER_NX, BoardKind
from worker_agent.power.cpu_shares import CpuShareController
from worker_agent.power.files import MachineFiles


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [AGX_XAVIER, XAVIER_NX], ids=["agx", "nx"])
def test_modes_and_threads_of_a_board_are_searched(kind: BoardKind, tmp_path: Path) -> None:
    board = EmulatedBoard.create(kind, tmp_path / "board")
    zoo.build("onnx_identity", tmp_path / "models")
    figures = search_board(board.root, tmp_path / "models", tmp_path)
    print(figures)
    assert isinstance(figures["measured_modes"], list)
    assert figures["measured_modes"] == figures["modes"]
    measured, predicted = figures["measured"], figures["predicted"]
    assert isinstance(measured, int)
    assert isinstance(predicted, int)
    assert measured < predicted
    switches = [call for call in board.calls() if " -m " in call]
    assert len(switches) >= len(figures["measured_modes"])


def modes_of(each: Round) -> list[str]:
    return [e.configuration.power_mode for result in each.results for e in result.executions]


def test_loose_deadlines_keep_frugal_modes_and_tight_ones_switch(tmp_path: Path) -> None:
    try:
        workers.check_cgroups()
    except NotSupported as error:
        pytest.skip(str(error))
    fast_modes = {worker.fast for worker in workers.WORKERS}
    loose, tight, loose_again = run(tmp_path / "built", tmp_path)
    for each in (loose, tight, loose_again):
        print(f"\n{modes_of(each)}, violated: {[result.violated for result in each.results]}")
    assert fast_modes.isdisjoint(modes_of(loose))
    assert fast_modes.intersection(modes_of(tight))
    assert fast_modes.isdisjoint(modes_of(loose_again))
    assert any(worker.switch_s > 0 for worker in tight.workers)
    assert not any(result.violated for each in (loose, loose_again) for result in each.results)


BURN = """
import time
begin, cpu = time.monotonic(), time.process_time()
while time.monotonic() - begin < 2.0:
    pass
print((time.process_time() - cpu) / (time.monotonic() - begin))
"""


def leftovers() -> list[str]:
    return MachineFiles().find("/sys/fs/cgroup", "**/synergai-*")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_modes_limit_the_process_and_its_children(share: float) -> None:
    power = CpuShareController(MachineFiles(), ["1cpu", f"{share}cpu"])
    try:
        power.switch(f"{share}cpu")
        done = subprocess.run(
            [sys.executable, "-c", BURN], capture_output=True, text=True, check=True
        )
    finally:
        power.close()
    print(f"\n{share}: {float(done.stdout):.3f}")
    # It may get less on a busy machine, but never more.
    assert 0.5 * share < float(done.stdout) < 1.05 * share
    assert not any(f"-{os.getpid()}-" in path for path in leftovers())
