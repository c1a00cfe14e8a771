"""Acceptance scripts leave no processes behind when their tests end early."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType

import psutil
import pytest

from tests.acceptance import scripts
from tests.acceptance.processes import is_alive

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
    deadline = time.monotonic() + 30.0
    while any(map(runs, map(int, pids.read_text().split()))):
        assert time.monotonic() < deadline, "a process was left"
        time.sleep(0.01)


def test_script_that_fails_fails_its_test_with_its_output() -> None:
    assert scripts.run([sys.executable, "-c", "print('fine')"]) == "fine\n"
    with pytest.raises(AssertionError, match="what it printed"):
        scripts.run([sys.executable, "-c", "import sys; print('what it printed'); sys.exit(3)"])
