"""Drives the gateway's own scheduling core through a workload, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Final

from synergai.domain import Session, WorkerId
from synergai.errors import InternalFault
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.events import (
    Dispatch,
    Fail,
    Finish,
    JobArrived,
    QueriesDone,
    Reject,
    SchedulingSettings,
    Stop,
    TimePassed,
    Worker,
    WorkerJoined,
)
from synergai.simulator.virtual_worker import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from synergai.domain import Job, JobId
    from synergai.scheduling.events import Command, Event
    from synergai.simulator.virtual_worker import Span
    from synergai.simulator.workload import Workload

REPORT_S: Final = 5.0
"""How often a virtual worker reports progress."""
_STALLED_AFTER: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened in one simulation.

    Attributes:
        spans: every assignment as it really ran, by worker, then time.
        finished: when each job was done; rejected ones are missing.
        decisions_s: CPU seconds that each of the core's decisions took.
    """

    workload: Workload
    policy: str
    spans: tuple[Span, ...]
    finished: dict[JobId, float]
    decisions_s: tuple[float, ...]


def workers(workload: Workload) -> list[Worker]:
    """One worker of each class, the strongest first."""
    profile = workload.profile
    return [
        Worker(
            id=WorkerId(name),
            worker_class=name,
            engines=frozenset(profile.engines),
            configurations=tuple(
                sorted(
                    {e.configuration for eng in profile.engines for e in profile.entries(eng, name)}
                )
            ),
            sessions=frozenset(
                Session(engine, entry.configuration)
                for engine in profile.engines
                for entry in profile.entries(engine, name)
            )
            if workload.sessions == "prewarmed"
            else frozenset(),
            keeps_sessions=workload.sessions != "cold",
        )
        for name in profile.classes
    ]


def settings_for(policy: str, options: dict[str, str] | None = None) -> SchedulingSettings:
    """The gateway's settings, but for a profile whose T_pre includes the mode switch."""
    return SchedulingSettings(policy=policy, mode_switch_s=0.0, options=options or {})


def simulate(workload: Workload, settings: SchedulingSettings, report_s: float = REPORT_S) -> Run:
    """Run a workload to its end.

    Raises:
        InvalidInput: the settings name no policy.
        InternalFault: the policy leaves jobs waiting for ever.
    """
    return _Simulation(workload, settings, report_s).run()


@dataclass(slots=True)
class _Simulation:
    workload: Workload
    settings: SchedulingSettings
    report_s: float
    now: float = 0.0
    core: SchedulerCore = field(init=False)
    machines: dict[WorkerId, Machine] = field(init=False)
    finished: dict[JobId, float] = field(default_factory=dict)
    unfinished: set[JobId] = field(init=False)
    decisions_s: list[float] = field(default_factory=list)
    agenda: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    count: itertools.count[int] = field(default_factory=itertools.count)

    def run(self) -> Run:
        """Go on until every job has ended."""
        workload = self.workload
        self.core = SchedulerCore(self.settings, workload.beliefs())
        jobs = {job.id: job for job in workload.jobs}
        self.unfinished = set(jobs)
        self.machines = {}
        for worker in workers(workload):
            self.machines[worker.id] = Machine(
                worker, workload, jobs, self.report_s, self.at, self.tell
            )
            self.tell(WorkerJoined(worker))
        for job in workload.jobs:
            self.at(job.arrival, partial(self.arrive, job))
        for _ in range(_STALLED_AFTER):
            if not self.unfinished:
                break
            self.step()
        else:
            raise InternalFault(f"policy {self.settings.policy!r} never comes to an end")
        return Run(
            workload=workload,
            policy=self.settings.policy,
            spans=tuple(span for machine in self.machines.values() for span in machine.spans),
            finished=self.finished,
            decisions_s=tuple(self.decisions_s),
        )

    def arrive(self, job: Job, _: float) -> None:
        """Let a job come, all of it ready."""
        self.tell(JobArrived(job, ready=job.queries))

    def step(self) -> None:
        """Go on to whatever comes first: what happens, or the core's own time."""
        wakeup = self.core.wakeup()
        if self.agenda and (wakeup is None or self.agenda[0][0] <= wakeup):
            self.now, _, happen = heapq.heappop(self.agenda)
            happen(self.now)
        elif wakeup is not None:
            self.now = wakeup
            self.tell(TimePassed())
        else:
            waiting = ", ".join(sorted(self.unfinished))
            raise InternalFault(f"policy {self.settings.policy!r} leaves jobs waiting: {waiting}")

    def at(self, instant: float, happen: Callable[[float], None]) -> None:
        """Let something happen at an instant; what was asked for first comes first."""
        heapq.heappush(self.agenda, (instant, next(self.count), happen))

    def tell(self, event: Event) -> None:
        """Tell the core, and do what it says."""
        began = thread_time()
        commands = self.core.handle(event, self.now)
        if not isinstance(event, QueriesDone | WorkerJoined):
            self.decisions_s.append(thread_time() - began)
        self.carry_out(commands)

    def carry_out(self, commands: Iterable[Command]) -> None:
        """Let the machines do what the core has decided."""
        for command in commands:
            match command:
                case Dispatch(assignment):
                    self.machines[assignment.worker_id].dispatch(assignment, self.now)
                case Stop(assignment_id, worker_id):
                    self.machines[worker_id].stop(assignment_id, self.now)
                case Finish(job_id):
                    self.finished[job_id] = self.now
                    self.unfinished.discard(job_id)
                case Reject(job_id) | Fail(job_id):
                    self.unfinished.discard(job_id)
