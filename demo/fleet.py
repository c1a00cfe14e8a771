"""One machine playing two: a fast worker, and one held down to a fraction of a processor."""

from __future__ import annotations

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
THREADS: Final = {FAST: "1,2", SLOW: "1"}
SLOW_CPUS: Final = 0.3
"""What the slow worker may use of one processor."""

_QUOTA: Final = (sys.executable, "-m", "worker_agent.power.cgroup", "--cpus", str(SLOW_CPUS), "--")
_NICE: Final = ("nice", "-n", "19")


def slowdown() -> tuple[tuple[str, ...], str]:
    """The command that runs another one slowly on this machine, and what it does in words.

    A CPU quota where control groups can be written, else a low priority.
    """
    tried = subprocess.run([*_QUOTA, "true"], capture_output=True, check=False)
    if tried.returncode == 0:
        return _QUOTA, f"a CPU quota of {SLOW_CPUS:.0%} of one processor"
    return _NICE, "one thread at the lowest priority (no control group can be made here)"


def start(fleet: LocalFleet, models: Path, dictionary: Path, slowly: Sequence[str]) -> None:
    """Start the gateway and both agents, and wait until they have found each other."""
    fleet.start_gateway(["--dictionary", str(dictionary)])
    for worker_class, prefix in ((FAST, ()), (SLOW, slowly)):
        fleet.start_agent(
            f"{worker_class}-1",
            models=models,
            worker_class=worker_class,
            options=["--threads", THREADS[worker_class]],
            prefix=prefix,
        )
    fleet.wait_for_workers(2)
