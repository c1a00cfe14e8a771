"""One session of an engine with variants is loaded at a time in the fleet, as event logs prove."""

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from profiler.simulator.recording import replay
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Dispatch,
    Event,
    JobCancelled,
    Load,
    Revoke,
    SessionDropped,
    SessionLoaded,
    Stop,
    TimePassed,
    Unload,
    Worker,
    WorkerJoined,
    WorkerLeft,
)
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.loads import overdue_at
from synergai.domain import (
    AssignmentId,
    Configuration,
    EngineName,
    Fault,
    JobId,
    Outcome,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from tests.cores import new_entry, new_job, new_request, new_worker

FAMILIES = [EngineName("fashion"), EngineName("cifar")]
PLAIN = EngineName("digits")
VARIANTS = {"large": (0.05, 0.90), "medium": (0.02, 0.88), "small": (0.005, 0.80)}
CLASSES = [WorkerClass("server"), WorkerClass("board")]
CONFIGURATIONS = (Configuration(threads=1), Configuration(threads=2))
POLICY_NAMES = POLICIES.names()


class LoadLog:
    """What event logs say about the loads of the families.

    Attributes:
        most: number of loads of a family that were in flight at once, without overdue ones.
        loads: number of loads.
        overdue: number of loads that began while another one was overdue.
    """

    def __init__(self) -> None:
        self.most = self.loads = self.overdue = 0
        self._resident: dict[WorkerId, set[Session]] = {}
        self._loading: dict[tuple[WorkerId, Session], float] = {}
        self._leases: dict[WorkerId, dict[AssignmentId, Session]] = {}
        self._started: set[AssignmentId] = set()

    def check(self, path: Path) -> None:
        """Replay a log."""
        for step in replay(path, time.thread_time):
            assert step.recorded == step.replayed
            self._hear(step.event, step.at)
            for command in step.recorded:
                self._follow(command, step.at)

    def _hear(self, event: Event, at: float) -> None:
        match event:
            case WorkerJoined(worker):
                self._forget(worker.id)
                self._resident[worker.id] = set(worker.sessions)
                self._leases[worker.id] = {}
            case WorkerLeft(worker_id):
                self._forget(worker_id)
            case SessionLoaded(worker_id, session):
                self._resident[worker_id].add(session)
                self._loading.pop((worker_id, session), None)
            case SessionDropped(worker_id, session):
                was_resident = session in self._resident[worker_id]
                self._resident[worker_id].discard(session)
                self._loading.pop((worker_id, session), None)
                if was_resident and any(
                    each == session and assignment not in self._started
                    for assignment, each in self._leases[worker_id].items()
                ):
                    # The worker dropped what it needs, and loads it again by itself. An assignment
                    # that runs keeps what it has.
                    self._loading[worker_id, session] = overdue_at(at, float("inf"))
            case AssignmentStarted(assignment_id):
                self._started.add(assignment_id)
            case AssignmentEnded(assignment_id, outcome=outcome):
                self._end(assignment_id, goes_on=outcome is Outcome.STOPPED)

    def _follow(self, command: Command, at: float) -> None:
        match command:
            case Load(worker_id, session, estimate_s):
                self._begin(worker_id, session, estimate_s, at)
            case Dispatch(assignment):
                session = _session(assignment)
                loaded_s = assignment.estimate_s - assignment.count * assignment.query_s
                if assignment.setup_s == 0.0:  # unknown
                    loaded_s = 0.0
                if session not in self._leases[assignment.worker_id].values():
                    self._begin(assignment.worker_id, session, loaded_s, at)
                self._leases[assignment.worker_id][assignment.id] = session
            case Revoke(assignment_id):
                self._end(assignment_id, goes_on=True)

    def _begin(self, worker_id: WorkerId, session: Session, estimate_s: float, at: float) -> None:
        if session.engine not in FAMILIES or session in self._resident[worker_id]:
            return
        others = [
            overdue
            for (_, other), overdue in self._loading.items()
            if other.engine == session.engine
        ]
        self.loads += 1
        self.most = max(self.most, 1 + sum(overdue > at + 1e-6 for overdue in others))
        self.overdue += bool(others)
        self._loading[worker_id, session] = overdue_at(at, estimate_s or float("inf"))

    def _end(self, assignment_id: AssignmentId, *, goes_on: bool) -> None:
        """Forget an assignment, and its load unless the worker goes on with it."""
        for worker_id, leases in self._leases.items():
            if assignment_id in leases:
                is_loading = next(iter(leases)) == assignment_id not in self._started
                session = leases.pop(assignment_id)
                if session not in leases.values() and not (goes_on and is_loading):
                    self._loading.pop((worker_id, session), None)

    def _forget(self, worker_id: WorkerId) -> None:
        self._resident.pop(worker_id, None)
        self._leases.pop(worker_id, None)
        self._loading = {key: at for key, at in self._loading.items() if key[0] != worker_id}


def _session(assignment: Assignment) -> Session:
    return Session(assignment.engine, assignment.configuration)


class Agent:
    """A worker as the core sees it: what it runs, loads and keeps."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.sessions = set(worker.sessions)
        self.queue: list[Assignment] = []
        self.loading: list[Session] = []


class RandomFleet:
    """A core with random workers, jobs and failures."""

    def __init__(self, policy: str, seed: int, path: Path) -> None:
        self.chance = chance = random.Random(f"{policy} {seed}")
        self.settings = SchedulingSettings(
            policy=policy,
            objective=chance.choice(("accuracy", "accuracy", "latency", "energy")),
            preload=chance.random() < 0.5,
            infeasible=chance.choice(("defer", "reject")),
        )
        entries = [
            self._entry(engine, each, replace(configuration, variant=name))
            for engine in FAMILIES
            for each in CLASSES
            for configuration in CONFIGURATIONS
            for name in VARIANTS
            if chance.random() < 0.7  # the others are measured by queries
        ]
        entries.append(self._entry(PLAIN, CLASSES[0], CONFIGURATIONS[0]))
        self.core = SchedulerCore(self.settings, ConfigurationDictionary(entries))
        self.now = 0.0
        self.log = EventLog(path, self.settings, ConfigurationDictionary(entries), epoch=0)
        self.agents: dict[WorkerId, Agent] = {}
        self._jobs = 0
        with self.log:
            for number in range(chance.randint(2, 5)):
                self._join(WorkerId(f"worker-{number}"))
            for _ in range(300):
                self._step()

    def _entry(
        self, engine: EngineName, worker_class: WorkerClass, configuration: Configuration
    ) -> ProfileEntry:
        seconds, accuracy = VARIANTS.get(configuration.variant, (0.01, 0.9))
        return new_entry(
            engine,
            worker_class,
            configuration.threads / seconds,
            configuration,
            accuracy=accuracy,
            accuracy_samples=10_000,
            backend_start_s=0.3,
            model_load_s=0.01,
            watts=10.0,
        )

    def _join(self, worker_id: WorkerId) -> None:
        chance = self.chance
        engines = frozenset({PLAIN, *chance.sample(FAMILIES, chance.randint(1, 2))})
        sessions = [
            Session(engine, replace(configuration, variant=name))
            for engine in FAMILIES
            if engine in engines
            for configuration in CONFIGURATIONS
            for name in VARIANTS
        ]
        worker = new_worker(
            worker_id,
            chance.choice(CLASSES),
            engines,
            CONFIGURATIONS,
            variants={
                engine: tuple(Variant(name=name, accuracy=VARIANTS[name][1]) for name in VARIANTS)
                for engine in FAMILIES
                if engine in engines
            },
            loaded=chance.sample(sessions, chance.choice((0, 0, 1, 2))),
        )
        self.agents[worker_id] = Agent(worker)
        self._handle(WorkerJoined(worker))

    def _handle(self, event: Event) -> None:
        """Pass an event to the core, and then the events that its commands lead to at once."""
        events = [event]
        while events:
            event = events.pop(0)
            commands = self.core.handle(event, self.now)
            self.log.record(event, self.now, commands)
            for command in commands:
                events += self._execute(command)

    def _execute(self, command: Command) -> Iterator[Event]:
        match command:
            case Dispatch(assignment):
                self.agents[assignment.worker_id].queue.append(assignment)
            case Load(worker_id, session):
                self.agents[worker_id].loading.append(session)
            case Unload(worker_id, session):
                self.agents[worker_id].sessions.discard(session)
                yield SessionDropped(worker_id, session)
            case Revoke(assignment_id, worker_id):
                queue = self.agents[worker_id].queue
                queue[:] = [each for each in queue if each.id != assignment_id]
            case Stop(assignment_id, worker_id):
                yield from self._stop(self.agents[worker_id], assignment_id)

    def _stop(self, agent: Agent, assignment_id: AssignmentId) -> Iterator[Event]:
        for number, assignment in enumerate(agent.queue):
            if assignment.id == assignment_id:
                session = _session(assignment)
                if number == 0 and session not in agent.sessions:
                    agent.loading.append(session)  # agents go on with a load
                agent.queue.remove(assignment)
                yield AssignmentEnded(assignment_id, 0, Outcome.STOPPED)
                return

    def _step(self) -> None:
        chance = self.chance
        self.now += chance.expovariate(20.0) if chance.random() < 0.98 else chance.uniform(1, 60)
        wakeup = self.core.wakeup()
        if wakeup is not None and wakeup <= self.now:
            self._handle(TimePassed())
        agent = chance.choice(list(self.agents.values()))
        roll = chance.random()
        if roll < 0.35:
            self._submit()
        elif roll < 0.70 and agent.queue:
            self._advance(agent)
        elif roll < 0.88 and agent.loading:
            session = agent.loading.pop(0)
            if chance.random() < 0.9:
                agent.sessions.add(session)
                self._handle(SessionLoaded(agent.worker.id, session, 0.3))
            else:
                self._handle(SessionDropped(agent.worker.id, session))
        elif roll < 0.92 and agent.sessions:
            session = chance.choice(sorted(agent.sessions, key=str))
            agent.sessions.discard(session)
            self._handle(SessionDropped(agent.worker.id, session))
        elif roll < 0.94 and self._jobs:
            self._handle(JobCancelled(JobId(str(chance.randint(1, self._jobs)))))
        elif roll < 0.96:
            self._handle(WorkerLeft(agent.worker.id))
            self._join(agent.worker.id)

    def _advance(self, agent: Agent) -> None:
        """Load what the first assignment of a worker needs, or else end it."""
        assignment = agent.queue[0]
        session = _session(assignment)
        if session not in agent.sessions:
            agent.loading = [each for each in agent.loading if each != session]
            agent.sessions.add(session)
            self._handle(SessionLoaded(agent.worker.id, session, 0.3))
            self._handle(AssignmentStarted(assignment.id, 0.3))
            return
        agent.queue.pop(0)
        ended = AssignmentEnded(
            assignment.id, assignment.count, Outcome.COMPLETED, compute_s=assignment.count * 0.01
        )
        if self.chance.random() < 0.05:
            ended = AssignmentEnded(assignment.id, 0, Outcome.FAILED, fault=Fault.HOST_DIED)
        self._handle(ended)

    def _submit(self) -> None:
        chance = self.chance
        self._jobs += 1
        single = chance.random() < 0.7
        engine = chance.choice((*FAMILIES, *FAMILIES, PLAIN))
        fields: dict[str, Any] = {}
        if engine != PLAIN and chance.random() < 0.4:
            fields = chance.choice(({"min_accuracy": 0.85}, {"variant": "large"}))
        fields["deadline"] = self.now + chance.choice((0.1, 1.0, 10.0, 1e6))
        new = new_request if single else partial(new_job, queries=100)
        self._handle(new(str(self._jobs), engine, now=self.now, **fields))


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_no_policy_loads_a_family_twice_at_once(tmp_path: Path, policy: str) -> None:
    loads = 0
    for seed in range(2):
        path = tmp_path / str(seed)
        RandomFleet(policy, seed, path)
        found = LoadLog()
        found.check(path)
        assert found.most <= 1, f"seed {seed}"
        loads += found.loads
    assert loads > 10


def test_the_log_shows_loads_that_began_while_another_one_hung(tmp_path: Path) -> None:
    found = LoadLog()
    for seed in range(20):
        path = tmp_path / str(seed)
        RandomFleet("edf", seed, path)
        found = LoadLog()
        found.check(path)
        if found.overdue:
            break
    assert found.overdue
