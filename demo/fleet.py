"""Two workers on one machine: a fast one, and one throttled to a fraction of a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from synergai.domain import WorkerClass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.testing import LocalFleet

FAST: Final = WorkerClass("cloud")
SLOW: Final = WorkerClass("edge")
SLOW_CPUS: Final = 0.3
"""CPU quota of the slow worker, in CPUs."""

_QUOTA: Final = (sys.executable, "-m", "worker_agent.power.cgroup", "--cpus", str(SLOW_CPUS), "--")
_NICE: Final = ("nice", "-n", "19")


def engine_options(worker_class: WorkerClass) -> list[str]:
    """Return the options for agent and profiler: thread counts and cores.

    The slow worker has the last core, the fast one all others. They stand for two machines:
    on common cores each would slow the other down, which no profile of a single one shows.
    """
    cores = sorted(os.sched_getaffinity(0))
    own = cores[-1:] if worker_class == SLOW else cores[:-1] or cores
    threads = "1,2" if len(own) > 1 else "1"
    return ["--threads", threads, "--cores", ",".join(map(str, own))]


def slowdown() -> tuple[tuple[str, ...], str]:
    """Return a command prefix that throttles another command, and its description.

    It sets a CPU quota if control groups are writable, else the lowest priority.
    """
    probe = subprocess.run([*_QUOTA, "true"], capture_output=True, check=False)
    if probe.returncode == 0:
        return _QUOTA, f"a quota of {SLOW_CPUS:.0%} of one CPU"
    return _NICE, "the lowest priority on one thread (control groups are not writable here)"


def start(fleet: LocalFleet, models: Path, dictionary: Path, throttle: Sequence[str]) -> None:
    """Start the gateway at default settings and both agents, and wait for the workers."""
    fleet.start_gateway(["--dictionary", str(dictionary)])
    for worker_class, prefix in ((FAST, ()), (SLOW, throttle)):
        fleet.start_agent(
            f"{worker_class}-1",
            models=models,
            worker_class=worker_class,
            options=engine_options(worker_class),
            prefix=prefix,
        )
    fleet.wait_for_workers(2)


def restart_gateway(fleet: LocalFleet, dictionary: Path, policy: str) -> None:
    """Restart the gateway with another policy, and wait until the workers have reconnected."""
    fleet.kill("gateway")
    fleet.start_gateway(["--dictionary", str(dictionary), "--policy", policy])
    fleet.wait_for_workers(2)
