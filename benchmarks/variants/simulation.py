"""Simulation of requests for engines with variants: the core in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from benchmarks.variants.load import Load
from benchmarks.variants.rules import RULES
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    AssignmentEnded,
    Dispatch,
    Expire,
    Finish,
    JobArrived,
    SessionLoaded,
    Stop,
    TimePassed,
    Worker,
    WorkerJoined,
)
from synergai.core.scheduling.events import Load as LoadSession
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import (
    Configuration,
    EngineName,
    Job,
    JobId,
    Outcome,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.core.scheduling.events import Assignment, Event
    from synergai.domain import AssignmentId

    Fronts: TypeAlias = Mapping[EngineName, Mapping[str, tuple[float, float]]]
    """Seconds and accuracy by variant and engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Engines with variants, and the workers that serve them.

    Attributes:
        name: what it is called.
        fronts: seconds and accuracy by variant and engine.
        layout: engines by worker.
        deadline_s: time that each request has.
        error: standard deviation of the logarithm of actual over profiled times.
        profile: what the profile has instead of the fronts; None for these.
        contested: throughput left by another program, by variant, in the second half of each
            minute.
        interference: additional share of a query's time within a deadline after one of another
            engine on the worker.
        start_s: seconds to start a process for an engine on a worker.
        load_s: seconds to load a variant into it.
        switch_queries: time for which a change of variant takes the worker, in queries of the new
            one. For rules of others, which unload the variant before.
    """

    name: str
    fronts: Fronts
    layout: Sequence[frozenset[EngineName]]
    deadline_s: float = 0.4
    error: float = 0.1
    profile: Fronts | None = None
    contested: Mapping[str, float] = field(default_factory=dict)
    interference: float = 0.0
    start_s: float = 0.5
    load_s: float = 0.05
    switch_queries: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Initial state of a run.

    Attributes:
        cold: nothing is loaded at first; otherwise everything is.
        lead_s: seconds between the workers' start and time 0, at which requests begin.
    """

    cold: bool = False
    lead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of a request.

    Attributes:
        engine: its engine.
        arrival: when it arrived.
        variant: the variant that answered; empty if it was not answered in time.
        accuracy: that variant's accuracy; 0 if it was not answered in time.
    """

    engine: EngineName
    arrival: float
    variant: str
    accuracy: float


_P99: Final = 2.326
"""Standard deviations of a normal distribution below its 99th percentile."""
WARM: Final = Start()
OURS: Final = "allowance"
"""Name of the gateway's own rule."""


def simulate(
    scenario: Scenario,
    arrivals: Sequence[tuple[float, EngineName]],
    seed: int,
    *,
    rule: str = OURS,
    policy: str = "malleable",
    start: Start = WARM,
) -> list[Answer]:
    """Run requests to their end.

    Args:
        scenario: engines and workers.
        arrivals: time and engine of each request, ascending.
        seed: seed of the deviations from the profile.
        rule: chooses variants; `OURS` or one of `RULES`.
        policy: scheduling policy.
        start: how the run begins.
    """
    return _Simulation(scenario, seed, rule, policy, start).run(arrivals)


@dataclass(slots=True)
class _Worker:
    """Runs assignments one after another."""

    queue: deque[Assignment] = field(default_factory=deque)
    running: Assignment | None = None
    seconds: float = 0.0
    sessions: set[Session] = field(default_factory=set)
    ran_at: dict[EngineName, float] = field(default_factory=dict)
    variants: dict[EngineName, str] = field(default_factory=dict)


def profile_entries(
    fronts: Fronts,
    worker_class: WorkerClass,
    *,
    error: float = 0.0,
    start_s: float = 0.0,
    load_s: float = 0.0,
) -> list[ProfileEntry]:
    """Return the profile of engines on a worker class, with accuracies of 10,000 samples."""
    tail = math.exp(_P99 * error)
    return [
        ProfileEntry(
            engine=engine,
            worker_class=worker_class,
            configuration=Configuration(variant=variant),
            qps=1.0 / seconds,
            latency_p50_s=seconds,
            latency_p99_s=seconds * tail,
            accuracy=accuracy,
            accuracy_samples=10_000,
            backend_start_s=start_s,
            model_load_s=load_s,
        )
        for engine, front in fronts.items()
        for variant, (seconds, accuracy) in front.items()
    ]


class _Simulation:
    def __init__(self, scenario: Scenario, seed: int, rule: str, policy: str, start: Start) -> None:
        self._scenario = scenario
        self._random = np.random.default_rng(seed)
        settings = SchedulingSettings(policy=policy, stuck_s=float("inf"))
        name = WorkerClass("server")
        entries = profile_entries(
            scenario.profile or scenario.fronts,
            name,
            error=scenario.error,
            start_s=scenario.start_s,
            load_s=scenario.load_s,
        )
        self._core = SchedulerCore(settings, ConfigurationDictionary(entries))
        served = Counter(engine for engines in scenario.layout for engine in engines)
        self._load = Load(served, scenario.deadline_s, by_throughput=scenario.profile is None)
        self._switch_queries = 0.0 if rule == OURS else scenario.switch_queries
        if rule != OURS:
            self._core.state.variants.rule = RULES[rule](self._load).choose
        self._workers: dict[WorkerId, _Worker] = {}
        # When an assignment ends, or the load of a session, which is given then.
        self._timers: list[tuple[float, int, WorkerId, Session | None]] = []
        self._count = itertools.count()
        self._jobs: dict[JobId, tuple[EngineName, float]] = {}
        self._variants: dict[JobId, str] = {}
        self._answers: list[Answer] = []
        for number, engines in enumerate(scenario.layout):
            worker = Worker(
                id=WorkerId(f"worker-{number}"),
                worker_class=name,
                engines=engines,
                configurations=(Configuration(),),
                sessions=frozenset(
                    Session(engine, Configuration(variant=variant))
                    for engine in engines
                    for variant in scenario.fronts[engine]
                    if not start.cold
                ),
                variants={
                    engine: tuple(Variant(name=variant) for variant in scenario.fronts[engine])
                    for engine in engines
                },
            )
            self._workers[worker.id] = _Worker(sessions=set(worker.sessions))
            self._handle(WorkerJoined(worker), -start.lead_s)

    def run(self, arrivals: Sequence[tuple[float, EngineName]]) -> list[Answer]:
        """Run requests to their end."""
        coming = deque(enumerate(arrivals))
        while coming or self._jobs or self._timers:
            next_arrival = coming[0][1][0] if coming else float("inf")
            next_end = self._timers[0][0] if self._timers else float("inf")
            wakeup = self._core.wakeup()
            if wakeup is not None and wakeup < min(next_arrival, next_end):
                self._handle(TimePassed(), wakeup)
            elif next_end <= next_arrival:
                at, _, worker_id, session = heapq.heappop(self._timers)
                if session is None:
                    self._end(worker_id, at)
                else:
                    self._loaded(worker_id, session, at)
            else:
                number, (at, engine) = coming.popleft()
                job = Job(
                    id=JobId(str(number)),
                    engine=engine,
                    queries=1,
                    arrival=at,
                    deadline=at + self._scenario.deadline_s,
                    perishable=True,
                    with_tensors=True,
                )
                self._jobs[job.id] = engine, at
                self._load.arrived(engine, at)
                self._handle(JobArrived(job, 1), at)
        return self._answers

    def _handle(self, event: Event, now: float) -> None:
        for command in self._core.handle(event, now):
            match command:
                case Dispatch(assignment):
                    worker = self._workers[assignment.worker_id]
                    worker.queue.append(assignment)
                    if worker.running is None:
                        self._start(assignment.worker_id, now)
                case Finish(job_id):
                    engine, arrival = self._jobs.pop(job_id)
                    variant = self._variants.pop(job_id)
                    accuracy = self._scenario.fronts[engine][variant][1]
                    self._answers.append(Answer(engine, arrival, variant, accuracy))
                case Expire(job_id):
                    engine, arrival = self._jobs.pop(job_id)
                    self._answers.append(Answer(engine, arrival, "", 0.0))
                case Stop(assignment_id, worker_id):
                    self._stop(worker_id, assignment_id, now)
                case LoadSession(worker_id, session):
                    # In parallel with the queries of the variants in use.
                    ends_at = now + self._load_s(self._workers[worker_id], session)
                    self._call_at(ends_at, worker_id, session)

    def _load_s(self, worker: _Worker, session: Session) -> float:
        """Return the seconds that a load takes; 0 if the session is loaded."""
        if session in worker.sessions:
            return 0.0
        started = any(each.engine == session.engine for each in worker.sessions)
        return self._scenario.load_s + (0.0 if started else self._scenario.start_s)

    def _loaded(self, worker_id: WorkerId, session: Session, now: float) -> None:
        self._workers[worker_id].sessions.add(session)
        self._handle(SessionLoaded(worker_id, session), now)

    def _call_at(self, instant: float, worker_id: WorkerId, session: Session | None) -> None:
        heapq.heappush(self._timers, (instant, next(self._count), worker_id, session))

    def _start(self, worker_id: WorkerId, now: float) -> None:
        worker = self._workers[worker_id]
        worker.running = worker.queue.popleft() if worker.queue else None
        if worker.running is not None:
            running = worker.running
            seconds, _ = self._scenario.fronts[running.engine][running.configuration.variant]
            seconds *= float(np.exp(self._scenario.error * self._random.standard_normal()))
            seconds *= self._slowed(worker, running, now)
            variant = running.configuration.variant
            if worker.variants.setdefault(running.engine, variant) != variant:
                worker.variants[running.engine] = variant
                seconds *= 1.0 + self._switch_queries
            worker.seconds = seconds
            worker.ran_at[running.engine] = now + seconds
            self._load.runs(worker_id, now, now + seconds)
            session = Session(running.engine, running.configuration)
            load_s = self._load_s(worker, session)
            if load_s:
                self._call_at(now + load_s, worker_id, session)
            self._call_at(now + load_s + seconds, worker_id, None)

    def _slowed(self, worker: _Worker, running: Assignment, now: float) -> float:
        """Return by what a query takes longer for what else the machine does."""
        scenario = self._scenario
        slowed = 1.0
        if scenario.contested and now % 60.0 >= 30.0:
            slowed /= scenario.contested[running.configuration.variant]
        for engine, ran_at in worker.ran_at.items():
            if engine != running.engine and now - ran_at <= scenario.deadline_s:
                return slowed * (1.0 + scenario.interference)
        return slowed

    def _end(self, worker_id: WorkerId, now: float) -> None:
        worker = self._workers[worker_id]
        ended = worker.running
        if ended is None:
            return
        seconds = worker.seconds
        self._variants[ended.job_id] = ended.configuration.variant
        self._start(worker_id, now)
        self._handle(AssignmentEnded(ended.id, 1, Outcome.COMPLETED, compute_s=seconds), now)
        self._variants.pop(ended.job_id, None)

    def _stop(self, worker_id: WorkerId, assignment_id: AssignmentId, now: float) -> None:
        """Take back an assignment that has not started; a running one is left to end."""
        worker = self._workers[worker_id]
        if any(each.id == assignment_id for each in worker.queue):
            worker.queue = deque(each for each in worker.queue if each.id != assignment_id)
            self._handle(AssignmentEnded(assignment_id, 0, Outcome.STOPPED), now)
