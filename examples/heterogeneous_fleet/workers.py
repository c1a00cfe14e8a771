"""The three workers that one machine plays, and how they are profiled and started."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from synergai.domain import EngineName, WorkerClass
from synergai.errors import NotSupported, SynergaiError
from synergai.profiles.files import add_to_dictionary, load_dictionary
from worker_agent.power.cpu_shares import parse_share

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.testing import LocalFleet

ENGINE: Final = EngineName("onnx_digits")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedWorker:
    """A kind of worker, played by a part of this machine's processor.

    Attributes:
        fast: the power mode with the larger share.
        frugal: the power mode with the smaller one.
    """

    worker_class: WorkerClass
    fast: str
    frugal: str

    @property
    def id(self) -> str:
        """The worker's name in the fleet."""
        return f"{self.worker_class}-1"

    @property
    def modes(self) -> str:
        """Both modes; the first is in force from the start."""
        return f"{self.frugal},{self.fast}"


# Together the fast ones leave a part of two cores to the gateway.
WORKERS: Final = (
    PlayedWorker(worker_class=WorkerClass("cloud"), fast="0.8cpu", frugal="0.3cpu"),
    PlayedWorker(worker_class=WorkerClass("board"), fast="0.5cpu", frugal="0.2cpu"),
    PlayedWorker(worker_class=WorkerClass("gadget"), fast="0.25cpu", frugal="0.12cpu"),
)
FAST_MODES: Final = frozenset(worker.fast for worker in WORKERS)


def declared_watts(mode: str) -> float:
    """The power that a mode is declared to take: more than in proportion to its speed.

    So do clocks and voltages that rise together. It is no measurement: a share of a processor
    has no meter of its own.
    """
    return 0.2 + 20.0 * parse_share(mode).cpus ** 2


def check_control_groups() -> None:
    """Check that this machine lets us give processes a share of its processor.

    Raises:
        NotSupported: it does not; the message says what is missing.
    """
    command = (sys.executable, "-m", "worker_agent.power.cgroup", "--cpus", "0.5", "--", "true")
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        reason = tried.stderr.strip().removeprefix("error: ") or "no reason was given"
        raise NotSupported(f"this example needs control groups, and root's rights: {reason}")


def profile(models: Path, run: Path) -> Path:
    """Profile all workers in both modes, side by side as they will serve; the dictionary.

    Raises:
        SynergaiError: a measurement failed.
    """
    dictionary = run / "dictionary.db"
    running = {worker: _start_profile(worker, models, run) for worker in WORKERS}
    failed = [worker.worker_class for worker, process in running.items() if process.wait()]
    if failed:
        raise SynergaiError(f"profiling {', '.join(failed)} failed; the logs are in {run}")
    for worker in WORKERS:
        entries = load_dictionary(_profile_of(worker, run))
        add_to_dictionary(
            dictionary,
            [
                replace(each, watts=declared_watts(each.configuration.power_mode))
                for each in entries
            ],
        )
    return dictionary


def start(fleet: LocalFleet, models: Path, dictionary: Path) -> None:
    """Start the gateway, which saves energy where deadlines allow it, and the three agents."""
    fleet.start_gateway(
        [
            *("--dictionary", str(dictionary), "--objective", "energy", "--heartbeat-s", "0.2"),
            # What a switch is taken to cost until one was seen; a board takes longer.
            *("--mode-switch-s", "0.5"),
        ]
    )
    for worker in WORKERS:
        fleet.start_agent(
            worker.id,
            models=models,
            worker_class=worker.worker_class,
            options=["--threads", "1", "--power", "cgroup", "--power-modes", worker.modes],
        )
    fleet.wait_for_workers(len(WORKERS))


def _start_profile(worker: PlayedWorker, models: Path, run: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "synergai", "profile", "--models", str(models)),
        *("--engines", ENGINE, "--threads", "1", "--worker-class", worker.worker_class),
        *("--power", "cgroup", "--modes", f"{worker.fast},{worker.frugal}"),
        *("--queries", "20", "--min-duration", "1"),
        *("--dictionary", str(_profile_of(worker, run))),
        *("--output", str(run / "profile" / worker.worker_class)),
    ]
    with (run / f"profile-{worker.worker_class}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _profile_of(worker: PlayedWorker, run: Path) -> Path:
    return run / f"{worker.worker_class}.db"
