"""Simulation: drives the scheduling core through a workload in virtual time; figures of a run."""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from dataclasses import dataclass, field
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.simulator.virtual_worker import VirtualWorker
from profiler.simulator.workload import JOBS
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Dispatch,
    Expire,
    Fail,
    Finish,
    JobArrived,
    Load,
    QueriesDone,
    Reject,
    Stop,
    TimePassed,
    Unload,
    Worker,
    WorkerJoined,
)
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Session
from synergai.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from profiler.simulator.virtual_worker import BusySpan, Loaded, VirtualSessionChange
    from profiler.simulator.workload import Workload
    from synergai.core.scheduling.events import Command, Event
    from synergai.domain import EngineName, Job, JobId, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary


_MAX_STEPS: Final = 20_000
"""Most steps of a run of up to 24 jobs; longer runs have as many for every 24 jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRun:
    """The outcome of one simulation.

    Attributes:
        spans: every assignment as executed, by worker, then time.
        finished: completion times; rejected jobs are missing.
        changes: sessions that became resident or were dropped, by worker, then time.
    """

    workload: Workload
    policy: str
    spans: tuple[BusySpan, ...]
    finished: dict[JobId, float]
    decisions_s: tuple[float, ...]
    loads: tuple[Loaded, ...] = ()
    changes: tuple[VirtualSessionChange, ...] = ()


def make_workers(workload: Workload) -> list[Worker]:
    """Return the workers, strongest first."""
    profile = workload.profile
    return [
        Worker(
            id=worker_id,
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
            session_bytes=dict.fromkeys(profile.engines, 0),
        )
        for worker_id, name in workload.workers.items()
    ]


def scheduling_settings(policy: str, options: dict[str, str] | None = None) -> SchedulingSettings:
    """Return gateway defaults, but without mode switch time, which the profile's T_pre includes."""
    return SchedulingSettings(policy=policy, policy_options=options or {}, mode_switch_s=0.0)


def simulate(
    workload: Workload,
    settings: SchedulingSettings,
    dictionary: ConfigurationDictionary | None = None,
) -> SimulationRun:
    """Run a workload to its end.

    Args:
        dictionary: what the scheduler knows of the profile; None for all of it.
    """
    known = workload.scheduler_dictionary() if dictionary is None else dictionary
    return _Simulation(workload, settings, known).run()


@dataclass(slots=True)
class _Simulation:
    """Event loop of one run: timers, the core, and virtual workers."""

    workload: Workload
    settings: SchedulingSettings
    dictionary: ConfigurationDictionary
    now: float = 0.0
    core: SchedulerCore = field(init=False)
    workers: dict[WorkerId, VirtualWorker] = field(init=False)
    finished: dict[JobId, float] = field(default_factory=dict)
    unfinished: set[JobId] = field(init=False)
    decisions_s: list[float] = field(default_factory=list)
    timers: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    count: itertools.count[int] = field(default_factory=itertools.count)

    def run(self) -> SimulationRun:
        workload = self.workload
        self.core = SchedulerCore(self.settings, self.dictionary)
        jobs = {job.id: job for job in workload.jobs}
        self.unfinished = set(jobs)
        self.workers = {}
        for worker in make_workers(workload):
            self.workers[worker.id] = VirtualWorker(
                worker, workload, jobs, self.call_at, self.handle
            )
            self.handle(WorkerJoined(worker))
        for job in workload.jobs:
            self.call_at(job.arrival, partial(self.submit, job))
        most = _MAX_STEPS * max(1, math.ceil(len(jobs) / JOBS))
        for _ in range(most):
            if not self.unfinished:
                break
            self.step()
        else:
            raise InternalError(
                f"policy {self.settings.policy!r} did not finish within {most:,} steps"
            )
        return SimulationRun(
            workload=workload,
            policy=self.settings.policy,
            spans=tuple(span for worker in self.workers.values() for span in worker.spans),
            finished=self.finished,
            decisions_s=tuple(self.decisions_s),
            loads=tuple(each for worker in self.workers.values() for each in worker.loads),
            changes=tuple(each for worker in self.workers.values() for each in worker.changes),
        )

    def submit(self, job: Job, _: float) -> None:
        """Submit a job with all of its queries ready."""
        self.handle(JobArrived(job, ready=job.queries))

    def step(self) -> None:
        """Advance to the next timer or to the core's wakeup, whichever is first."""
        wakeup = self.core.wakeup()
        if self.timers and (wakeup is None or self.timers[0][0] <= wakeup):
            self.now, _, callback = heapq.heappop(self.timers)
            callback(self.now)
        elif wakeup is not None:
            self.now = wakeup
            self.handle(TimePassed())
        else:
            waiting = ", ".join(sorted(self.unfinished))
            raise InternalError(f"policy {self.settings.policy!r} left jobs waiting: {waiting}")

    def call_at(self, instant: float, callback: Callable[[float], None]) -> None:
        """Schedule a callback; callbacks of the same instant run in order of scheduling."""
        heapq.heappush(self.timers, (instant, next(self.count), callback))

    def handle(self, event: Event) -> None:
        started = thread_time()
        commands = self.core.handle(event, self.now)
        if not isinstance(event, QueriesDone | WorkerJoined):
            self.decisions_s.append(thread_time() - started)
        self.execute(commands)

    def execute(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Dispatch(assignment):
                    self.workers[assignment.worker_id].dispatch(assignment, self.now)
                case Load(worker_id, session):
                    self.workers[worker_id].load(session, self.now)
                case Unload(worker_id, session):
                    self.call_at(self.now, partial(self.workers[worker_id].unload, session))
                case Stop(assignment_id, worker_id, abort):
                    self.workers[worker_id].stop(assignment_id, self.now, abort=abort)
                case Finish(job_id):
                    self.finished[job_id] = self.now
                    self.unfinished.discard(job_id)
                case Reject(job_id) | Fail(job_id) | Expire(job_id):
                    self.unfinished.discard(job_id)


LATE_S: Final = 1e-9
"""Time after its deadline up to which a job is in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Outcome of a job.

    Attributes:
        wait_s: from its arrival until a worker started it; None if none did.
        end_to_end_s: from its arrival to its last query; None if it did not finish.
        excess_s: time beyond its deadline; 0 if it was in time or did not finish.
        violated: whether it was late or did not finish.
    """

    engine: EngineName
    queries: int
    wait_s: float | None
    end_to_end_s: float | None
    excess_s: float
    violated: bool


def job_outcomes(
    jobs: Iterable[Job], spans: Iterable[BusySpan], finished: Mapping[JobId, float]
) -> tuple[JobOutcome, ...]:
    started: dict[JobId, float] = {}
    for span in spans:
        started[span.job_id] = min(span.started, started.get(span.job_id, span.started))
    outcomes = []
    for job in jobs:
        begun, ended = started.get(job.id), finished.get(job.id)
        excess_s = 0.0 if ended is None else max(0.0, ended - job.deadline)
        outcomes.append(
            JobOutcome(
                engine=job.engine,
                queries=job.queries,
                wait_s=None if begun is None else begun - job.arrival,
                end_to_end_s=None if ended is None else ended - job.arrival,
                excess_s=excess_s,
                violated=ended is None or excess_s > LATE_S,
            )
        )
    return tuple(outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy in one experiment with one seed.

    Attributes:
        mean_wait_s: from a job's arrival until a worker starts it.
        mean_excess_s: time beyond the deadline over all jobs, 0 for those in time.
        excess_p99_s: 99th percentile of the same.
        e2e_mean_s: from arrival to the last query, over finished jobs.
        e2e_p99_s: 99th percentile of the same.
        decision_p99_us: CPU microseconds per decision, 99th percentile.
    """

    experiment: str
    policy: str
    seed: int
    jobs: int
    violations: int
    mean_wait_s: float
    mean_excess_s: float
    excess_p99_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    decisions: int
    decision_p99_us: float


def summarize(run: SimulationRun) -> SimulationResult:
    """Compute the figures of a run; it has at least one job and one decision."""
    workload = run.workload
    jobs = job_outcomes(workload.jobs, run.spans, run.finished)
    times = [job.end_to_end_s for job in jobs if job.end_to_end_s is not None]
    waits = [job.wait_s for job in jobs if job.wait_s is not None]
    return SimulationResult(
        experiment=workload.experiment,
        policy=run.policy,
        seed=workload.seed,
        jobs=len(jobs),
        violations=sum(job.violated for job in jobs),
        mean_wait_s=statistics.fmean(waits) if waits else 0.0,
        mean_excess_s=sum(job.excess_s for job in jobs) / len(jobs),
        excess_p99_s=float(np.percentile([job.excess_s for job in jobs], 99)),
        e2e_mean_s=statistics.fmean(times) if times else 0.0,
        e2e_p99_s=float(np.percentile(times, 99)) if times else 0.0,
        decisions=len(run.decisions_s),
        decision_p99_us=float(np.percentile(run.decisions_s, 99)) * 1e6,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of a figure over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        known = list(values)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)
