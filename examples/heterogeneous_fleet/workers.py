"""The three emulated workers: definition, profiling and start."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.dictionary.files import add_to_dictionary, load_dictionary
from synergai.domain import EngineName, WorkerClass
from synergai.errors import NotSupported, SynergaiError
from worker_agent.power.cpu_shares import CpuShareController, parse_share
from worker_agent.power.files import MachineFiles

if TYPE_CHECKING:
    from pathlib import Path

    from demo.local_fleet import LocalFleet

ENGINE: Final = EngineName("onnx_digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedWorker:
    """A worker class, emulated with a CPU share of this machine.

    Attributes:
        fast: the power mode with the larger share.
        frugal: the power mode with the smaller one.
    """

    worker_class: WorkerClass
    fast: str
    frugal: str

    @property
    def id(self) -> str:
        """Worker id in the fleet."""
        return f"{self.worker_class}-1"

    @property
    def modes(self) -> str:
        """Both modes; the first is the initial one."""
        return f"{self.frugal},{self.fast}"


# The fast modes together leave part of two cores to the gateway.
WORKERS: Final = (
    EmulatedWorker(worker_class=WorkerClass("cloud"), fast="0.8cpu", frugal="0.3cpu"),
    EmulatedWorker(worker_class=WorkerClass("board"), fast="0.5cpu", frugal="0.2cpu"),
    EmulatedWorker(worker_class=WorkerClass("gadget"), fast="0.25cpu", frugal="0.12cpu"),
)


def declared_watts(mode: str) -> float:
    """Return the declared power of a mode in watts: a constant plus the cube of its speed.

    The shape follows that of dynamic voltage and frequency scaling. It is not a measurement: a
    CPU share has no meter. Every frugal mode needs clearly less energy per query than the fast one,
    so that errors of the short profiles do not hide it. Frugal modes compute less than their share:
    the overhead of the process is the same in both modes, so that 0.25cpu is two and a half to
    three times as fast as 0.12cpu.
    """
    return 0.02 + 20.0 * parse_share(mode).cpus ** 3


def check_cgroups() -> None:
    """Check that CPU time can be limited on this machine.

    Raises:
        NotSupported: it cannot; the message has the reason.
    """
    try:
        CpuShareController(MachineFiles(), ["0.5cpu"]).close()
    except NotSupported as error:
        raise NotSupported(f"this example needs permission to create cgroups: {error}") from None


def profile(models: Path, run: Path) -> Path:
    """Profile all workers concurrently in both modes; return the path of the dictionary.

    Raises:
        SynergaiError: a measurement failed.
    """
    dictionary = run / "dictionary.db"
    running = {worker: _start_profile(worker, models, run) for worker in WORKERS}
    failed = [worker.worker_class for worker, process in running.items() if process.wait()]
    if failed:
        raise SynergaiError(f"profiling {', '.join(failed)} failed; the logs are in {run}")
    for worker in WORKERS:
        entries = load_dictionary(_profile_path(worker, run))
        add_to_dictionary(
            dictionary,
            [
                replace(each, watts=declared_watts(each.configuration.power_mode))
                for each in entries
            ],
        )
    return dictionary


def start(fleet: LocalFleet, models: Path, dictionary: Path) -> None:
    """Start the gateway with the energy objective, and the three agents."""
    fleet.start_gateway(
        ["--dictionary", str(dictionary), "--objective", "energy", "--heartbeat-s", "0.2"],
        # Initial estimate of a switch's duration, until one has been observed.
        prefix=["env", "SYNERGAI_GATEWAY_MODE_SWITCH_S=0.5"],
    )
    for worker in WORKERS:
        fleet.start_agent(
            worker.id,
            models=models,
            worker_class=worker.worker_class,
            options=["--threads", "1", "--power", "cgroup", "--power-modes", worker.modes],
        )
    fleet.wait_for_workers(len(WORKERS))


def _start_profile(worker: EmulatedWorker, models: Path, run: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "synergai", "profile", "--models", str(models)),
        *("--engines", ENGINE, "--threads", "1", "--worker-class", worker.worker_class),
        *("--power", "cgroup", "--modes", f"{worker.fast},{worker.frugal}"),
        # A share of 0.12 computes for 12 ms in every 100 ms: a second would be too short.
        *("--queries", "20", "--min-duration", "4"),
        *("--dictionary", str(_profile_path(worker, run))),
        *("--output", str(run / "profile" / worker.worker_class)),
    ]
    with (run / f"profile-{worker.worker_class}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _profile_path(worker: EmulatedWorker, run: Path) -> Path:
    return run / f"{worker.worker_class}.db"
