"""CPU shares, measured; needs permission to create cgroups."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_agent.power.cpu_shares import CpuShareController
from worker_agent.power.files import MachineFiles

BURN = """
import time
begin, cpu = time.monotonic(), time.process_time()
while time.monotonic() - begin < 2.0:
    pass
print((time.process_time() - cpu) / (time.monotonic() - begin))
"""
RUN = [sys.executable, "-m", "worker_agent.power.cgroup"]


def leftovers() -> list[str]:
    return MachineFiles().find("/sys/fs/cgroup", "**/synergai-*")


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_a_command_gets_its_share_of_a_core(share: float) -> None:
    burn = [sys.executable, "-c", BURN]
    done = subprocess.run(
        [*RUN, "--cpus", str(share), "--", *burn], capture_output=True, text=True, check=True
    )
    print(f"\n{share}: {float(done.stdout):.3f}")
    # It may get less on a busy machine, but never more.
    assert 0.5 * share < float(done.stdout) < 1.05 * share


def test_a_command_keeps_its_exit_status_and_receives_signals() -> None:
    cores = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0)); raise SystemExit(7)"]
    done = subprocess.run(
        [*RUN, "--cpus", "1", "--cpuset", "0", "--", *cores],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("{0}", 7)
    with subprocess.Popen([*RUN, "--cpus", "1", "--", "sleep", "60"]) as process:
        assert eventually(lambda: any(f"-{process.pid}-" in path for path in leftovers()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def test_a_group_is_removed_even_if_its_command_is_killed() -> None:
    before = set(leftovers())
    with subprocess.Popen([*RUN, "--cpus", "1", "--", "sleep", "60"]) as process:
        assert eventually(lambda: set(leftovers()) != before)
        process.kill()
    assert eventually(lambda: set(leftovers()) <= before)


def waiting_processes() -> set[int]:
    """Return the ids of the processes that wait to remove a group."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"worker_agent.power.cgroup" in path.read_bytes():
                found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind_even_if_another_one_removed_the_group(
    sent: signal.Signals,
) -> None:
    before = waiting_processes()
    with subprocess.Popen([*RUN, "--cpus", "1", "--", "sleep", "60"]) as process:
        assert eventually(lambda: len(waiting_processes() - before) == 1)
        assert eventually(lambda: any(f"-{process.pid}-" in path for path in leftovers()))
        process.send_signal(sent)
        process.wait(10)
        # As the next command does that sweeps the groups of dead processes.
        for path in leftovers():
            if f"-{process.pid}-" in path:
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
    assert eventually(lambda: not waiting_processes() - before)
    for _ in range(3):
        subprocess.run([*RUN, "--cpus", "1", "--", "true"], check=True)
    assert eventually(lambda: not waiting_processes() - before)


def test_modes_limit_the_process_and_its_children() -> None:
    power = CpuShareController(MachineFiles(), ["1cpu", "0.2cpu"])
    try:
        power.switch("0.2cpu")
        done = subprocess.run(
            [sys.executable, "-c", BURN], capture_output=True, text=True, check=True
        )
    finally:
        power.close()
    assert float(done.stdout) < 0.21
    assert not any(f"-{os.getpid()}-" in path for path in leftovers())
