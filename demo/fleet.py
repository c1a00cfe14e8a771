"""Two workers on one machine: a fast one, and one throttled to a fraction of a CPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.domain import WorkerClass
from synergai.errors import NotSupported
from worker_agent.power.cpu_shares import CpuShareController
from worker_agent.power.files import MachineFiles

if TYPE_CHECKING:
    from pathlib import Path

    from demo.local_fleet import LocalFleet

FAST: Final = WorkerClass("cloud")
SLOW: Final = WorkerClass("edge")
_MODE: Final = "0.3cpu"
"""Power mode of the slow worker: 30 % of one CPU."""


def engine_options(worker_class: WorkerClass) -> list[str]:
    """Return the options for agent and profiler: thread counts and cores.

    The slow worker has the last core, the fast one all others. They stand for two machines:
    on common cores each would slow the other down, which no profile of a single one shows.
    """
    cores = sorted(os.sched_getaffinity(0))
    own = cores[-1:] if worker_class == SLOW else cores[:-1] or cores
    threads = "1,2" if len(own) > 1 else "1"
    return ["--threads", threads, "--cores", ",".join(map(str, own))]


class Throttle(NamedTuple):
    """How the slow worker is throttled: by a power mode, or by a command that runs others."""

    description: str
    mode: str = ""
    prefix: tuple[str, ...] = ()

    def power(self, modes: str) -> list[str]:
        """Return the options for the power mode, given the name of the one that selects it."""
        return ["--power", "cgroup", modes, self.mode] if self.mode else []


NONE: Final = Throttle("nothing")


def slowdown() -> Throttle:
    """Return a CPU quota if control groups are writable, else the lowest priority."""
    try:
        CpuShareController(MachineFiles(), [_MODE]).close()
    except NotSupported:
        text = "the lowest priority on one thread (control groups are not writable here)"
        return Throttle(text, prefix=("nice", "-n", "19"))
    return Throttle("a quota of 30% of one CPU", _MODE)


def start(fleet: LocalFleet, models: Path, dictionary: Path, throttle: Throttle) -> None:
    """Start the gateway at default settings and both agents, and wait for the workers."""
    fleet.start_gateway(["--dictionary", str(dictionary)])
    for worker_class, slow in ((FAST, NONE), (SLOW, throttle)):
        fleet.start_agent(
            f"{worker_class}-1",
            models=models,
            worker_class=worker_class,
            options=engine_options(worker_class) + slow.power("--power-modes"),
            prefix=slow.prefix,
        )
    fleet.wait_for_workers(2)


def restart_gateway(fleet: LocalFleet, dictionary: Path, policy: str) -> None:
    """Restart the gateway with another policy, and wait until the workers have reconnected."""
    fleet.kill("gateway")
    fleet.start_gateway(["--dictionary", str(dictionary), "--policy", policy])
    fleet.wait_for_workers(2)
