"""Short runs of acceptance scripts, what they count as an error, and how they end."""

import signal
import sys
from pathlib import Path
from types import FrameType

import psutil
import pytest

from synergai.v1 import jobs_pb2
from tests.acceptance import scripts
from tests.acceptance.crashes import find_errors
from tests.acceptance.power_loss import cut_all, record_workload
from tests.acceptance.processes import is_alive
from tests.waiting import wait_until

SCRIPT = """\
import os, signal, subprocess, sys
from pathlib import Path

if {stubborn}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session={in_session})
Path({pids!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
try:
    os.kill(os.getppid(), signal.SIGUSR1)
    child.wait()
finally:
    child.kill()
    child.wait()
"""


class LimitReachedError(Exception):
    """Stands for the time limit of a test."""


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and is_alive(psutil.Process(pid))


@pytest.mark.parametrize(("stubborn", "in_session"), [(False, True), (True, False)])
def test_test_that_is_ended_ends_its_script_and_the_processes_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stubborn: bool, in_session: bool
) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise LimitReachedError

    monkeypatch.setattr(scripts, "STOP_S", 0.2 if stubborn else 60.0)
    pids = tmp_path / "pids"
    script = SCRIPT.format(stubborn=stubborn, in_session=in_session, pids=str(pids))
    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(LimitReachedError):
            scripts.run([sys.executable, "-c", script])
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: not any(map(runs, map(int, pids.read_text().split()))))


def test_script_that_fails_fails_its_test_with_its_output() -> None:
    assert scripts.run([sys.executable, "-c", "print('fine')"]) == "fine\n"
    with pytest.raises(AssertionError, match="what it printed"):
        scripts.run([sys.executable, "-c", "import sys; print('what it printed'); sys.exit(3)"])


@pytest.mark.parametrize(
    "command", ["crashes.py --kills 6 --jobs 60", "mutated_models.py --count 8"]
)
def test_fleet_withstands_a_short_run(command: str) -> None:
    scripts.run_script(*command.split())


@pytest.mark.parametrize(("synchronous", "loses"), [("full", False), ("off", True)])
def test_power_cuts_lose_only_what_was_not_synced(
    tmp_path: Path, synchronous: str, *, loses: bool
) -> None:
    recording = record_workload(tmp_path, 30, 1, synchronous=synchronous)
    assert any(cut_all(recording, cuts=25, seed=2)) is loses


@pytest.mark.parametrize(
    ("ranges", "state", "fault"),
    [
        ([(5, 5), (0, 5)], "SUCCEEDED", ""),
        ([(0, 4), (5, 5)], "SUCCEEDED", "are lost"),
        ([(0, 9)], "SUCCEEDED", "are lost"),
        ([(0, 6), (5, 5)], "SUCCEEDED", "recorded twice"),
        ([(0, 10), (0, 10)], "SUCCEEDED", "recorded twice"),
        ([(0, 10)], "FAILED", "JOB_STATE_FAILED"),
    ],
)
def test_job_that_lost_or_repeated_queries_is_an_error(
    ranges: list[tuple[int, int]], state: str, fault: str
) -> None:
    job = jobs_pb2.Job(
        id="a",
        state=jobs_pb2.JobState.Value(f"JOB_STATE_{state}"),
        queries_done=sum(count for _, count in ranges),
        executions=[jobs_pb2.Execution(first=first, count=count) for first, count in ranges],
    )
    found = find_errors(job, 10)
    assert any(fault in line for line in found) if fault else not found
