"""The scheduling core with its CPU time, driven by the events of a benchmark in virtual time."""

from __future__ import annotations

from time import thread_time
from typing import TYPE_CHECKING

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import AssignmentEnded, Dispatch, Stop, Worker, WorkerJoined
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Configuration, Outcome, Session, WorkerId
from synergai.profiles.dictionary import ConfigurationDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.core.scheduling.events import Assignment, Command, Event
    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

CONFIGURATION = Configuration(4)


def make_core(
    policy: str,
    entries: Iterable[ProfileEntry],
    classes: Sequence[WorkerClass],
    workers: int,
    resident: Sequence[EngineName],
) -> SchedulerCore:
    """Return a core with workers of each class in turn, which have all engines of the profile.

    Args:
        policy: the scheduling policy.
        entries: the profile.
        classes: classes of the workers.
        workers: number of workers.
        resident: engines with sessions on every worker.
    """
    dictionary = ConfigurationDictionary(entries)
    core = SchedulerCore(SchedulingSettings(policy=policy), dictionary)
    engines = frozenset(entry.engine for entry in dictionary)
    for number in range(workers):
        worker = Worker(
            id=WorkerId(f"worker-{number}"),
            worker_class=classes[number % len(classes)],
            engines=engines,
            configurations=(CONFIGURATION,),
            sessions=frozenset(Session(engine, CONFIGURATION) for engine in resident),
        )
        core.handle(WorkerJoined(worker), 0.0)
    return core


class TimedCore:
    """A core, and what its workers run.

    Attributes:
        core: the core under test.
        now: the current virtual time.
        costs_s: CPU time of each event, so that other processes do not count.
        in_flight: dispatched assignments by id, the oldest first.
    """

    def __init__(self, core: SchedulerCore) -> None:
        self.core = core
        self.now = 0.0
        self.costs_s: list[float] = []
        self.in_flight: dict[int, Assignment] = {}

    def handle(self, event: Event) -> None:
        """Pass an event to the core, timed together with the call to ``wakeup``."""
        started = thread_time()
        commands = self.core.handle(event, self.now)
        self.core.wakeup()
        self.costs_s.append(thread_time() - started)
        self._follow(commands)

    def complete(self, assignment_id: int, compute_s: float = 0.0) -> None:
        """Complete an assignment."""
        assignment = self.in_flight.pop(assignment_id)
        self.handle(
            AssignmentEnded(assignment.id, assignment.count, Outcome.COMPLETED, compute_s=compute_s)
        )

    def _follow(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch(assignment):
                    self.in_flight[assignment.id] = assignment
                case Stop(assignment_id):
                    del self.in_flight[assignment_id]
                    self.handle(AssignmentEnded(assignment_id, 0, Outcome.STOPPED))
