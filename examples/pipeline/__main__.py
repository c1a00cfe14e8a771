"""``python -m examples.pipeline``: run the example."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.local_fleet import LocalFleet, reserved_port
from demo.steps import console, run_steps, step
from examples.pipeline import exits, network
from examples.pipeline.interference import busy
from synergai import SyncClient
from synergai.cli.output import format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.domain import EngineName

BLOCKS: Final = 16
CUTS: Final = (7, 9)
"""Blocks before each cut: the middle stage is on both workers."""
MEMORY_SHARE: Final = 0.85
"""Part of the whole network's memory that each worker gets."""
HEARTBEATS_S: Final = 3.0
"""Time in which each worker reports its memory."""
QUERIES: Final = 400
WARM: Final = 40
IMAGES: Final = 300
CORES: Final = {"left": 0, "right": 1}


def run(directory: Path) -> None:
    """Cut a network, and serve it with and without interference; print what workers did."""
    models = directory / "models"
    with step(f"1. A network of {BLOCKS} blocks, cut behind {CUTS[0]} and {CUTS[1]} of them"):
        network.build(models, BLOCKS)
        stages = network.split(models, CUTS)
        installed = {"left": stages[:2], "right": stages[1:]}
    with step("2. The whole network on one worker"):
        whole_bytes = _memory_bytes(models, directory)
        memory_mb = int(MEMORY_SHARE * whole_bytes / 1e6)
        console.print(
            f"  it takes {whole_bytes / 1e6:.0f} MB; other workers get {memory_mb} MB each"
        )
    with ExitStack() as stack, LocalFleet(directory / "fleet") as fleet:
        with step("3. Two such workers, with the middle stage on both"):
            fleet.start_gateway()
            for name, engines in installed.items():
                folder = directory / name
                for each in engines:
                    shutil.copytree(models / each, folder / each)
                port = stack.enter_context(reserved_port())
                options = ["--peer-port", str(port), "--memory-mb", str(memory_mb)]
                _start(fleet, name, folder, options)
            fleet.wait_for_workers(len(installed))
        with SyncClient(fleet.address) as client, step("4. Jobs"):
            _job(client, WARM)
            alone = _measure(client, stages, "without interference")
            with busy(CORES["right"]):
                _measure(client, stages, "with other work on the core of right", alone)
            time.sleep(HEARTBEATS_S)
            for name, used in _engines_bytes(client).items():
                console.print(f"  {name} uses {used / 1e6:.0f} MB of {memory_mb} MB")
    with step("5. Exits in the stages of a network that reads digits"):
        ways, made = exits.make(models)
        for one in made:
            leave = f"{one.exit.rate:.0%} of those that get there leave"
            console.print(f"  {one.cut.tensor}, behind {one.cut.work:.0%} of the work: {leave}")
        ways = {way: ways[way] for way in (exits.WHOLE, exits.STAGES)}
        for way, found in exits.compare(models, directory, ways, IMAGES).items():
            mean = f"{1e3 * found.mean_s():.1f} ms per request on average"
            console.print(f"  {way}: {mean}, {found.accuracy():.1%} right")


def _start(fleet: LocalFleet, name: str, models: Path, options: list[str]) -> None:
    core = ["--threads", "1", "--cores", str(CORES[name])]
    fleet.start_agent(name, models=models, options=[*core, *options])


def _memory_bytes(models: Path, directory: Path) -> int:
    """Return the memory of an engine host with the whole network."""
    whole = directory / "whole"
    shutil.copytree(models / network.ENGINE, whole / network.ENGINE)
    with LocalFleet(directory / "alone") as fleet:
        fleet.start_gateway()
        _start(fleet, "left", whole, [])
        fleet.wait_for_workers(1)
        with SyncClient(fleet.address) as client:
            client.infer(network.ENGINE, network.image(0))
            time.sleep(HEARTBEATS_S)
            return _engines_bytes(client)["left"]


def _engines_bytes(client: SyncClient) -> dict[str, int]:
    return {worker.id: worker.engines_rss_bytes for worker in client.workers()}


def _job(client: SyncClient, queries: int) -> float:
    """Run a job over images; return its rate."""
    inputs = [network.image(number % 8) for number in range(queries)]
    status = client.submit(network.ENGINE, inputs=inputs).wait()
    status.raise_unless_succeeded()
    return queries / (status.actual_s or 1.0)


def _measure(client: SyncClient, stages: list[EngineName], title: str, alone: float = 0.0) -> float:
    before = _done(client)
    rate = _job(client, QUERIES)
    done = {name: count - before[name] for name, count in _done(client).items()}
    middle = done["left"] - QUERIES  # each query runs the first stage there
    share = f", {rate / alone:.0%} of that" if alone else ""
    console.print(f"  {title}: {format_rate(rate)} queries per second{share}")
    console.print(f"    stage {stages[1]}: {middle / QUERIES:.0%} of the queries on left")
    return rate


def _done(client: SyncClient) -> Mapping[str, int]:
    return {worker.id: worker.queries_done for worker in client.workers()}


def main() -> None:
    """Run the example in a new folder of ``runs``.

    Raises:
        SynergaiError: a step failed.
    """
    directory = Path("runs") / time.strftime("pipeline-%Y%m%d-%H%M%S")
    directory.mkdir(parents=True)
    run(directory)
    console.print(f"Files: {directory}")


if __name__ == "__main__":
    sys.exit(run_steps(main))
