"""The invariants that core.py opens with, under random event sequences.

Random fleets and jobs go through random events, including worker losses, stops, failures,
duplicate and stale reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergai import domain
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentsRevoked,
    AssignmentStarted,
    Command,
    Dispatch,
    EnginesChanged,
    Event,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    ModeChanged,
    ProfilesAdded,
    ProfilesRemoved,
    ProgressChecked,
    QueriesDone,
    QueriesReady,
    Reject,
    Revoke,
    SessionDropped,
    SessionLoaded,
    Stop,
    TimePassed,
    Worker,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.core.scheduling.state.jobs import LeasePhase
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_entry

ENGINES = [domain.EngineName("alpha"), domain.EngineName("beta"), domain.EngineName("unprofiled")]
CLASSES = [domain.WorkerClass("fast"), domain.WorkerClass("slow"), domain.WorkerClass("new")]
CONFIGURATIONS = (domain.Configuration(1), domain.Configuration(4, "maxn"))
MAX_QUERIES = 40


def make_dictionary() -> ConfigurationDictionary:
    return ConfigurationDictionary(
        new_entry(
            engine,
            worker_class,
            qps * factor * configuration.threads**0.5,
            configuration,
            model_load_s=t_pre,
            watts=10.0 * configuration.threads,
        )
        for engine, factor in ((ENGINES[0], 1.0), (ENGINES[1], 0.3))
        for worker_class, qps, t_pre in ((CLASSES[0], 40.0, 0.5), (CLASSES[1], 8.0, 1.5))
        for configuration in CONFIGURATIONS
    )


@dataclass
class World:
    """A core, and the state that an observer derives from its commands alone."""

    core: SchedulerCore
    now: float = 0.0
    log: list[tuple[float, Event, list[Command]]] = field(default_factory=list)
    jobs: dict[domain.JobId, domain.Job] = field(default_factory=dict)
    recorded: dict[domain.JobId, set[int]] = field(default_factory=dict)
    in_flight: dict[domain.AssignmentId, Assignment] = field(default_factory=dict)
    done: dict[domain.AssignmentId, int] = field(default_factory=dict)
    outcomes: dict[domain.JobId, Command | None] = field(default_factory=dict)
    workers: set[domain.WorkerId] = field(default_factory=set)

    def handle(self, event: Event) -> None:
        if isinstance(event, AssignmentEnded | QueriesDone):
            self._record(event)
        if isinstance(event, AssignmentEnded):
            self.in_flight.pop(event.assignment_id, None)
        if isinstance(event, WorkerLeft | WorkerJoined):
            gone = event.worker_id if isinstance(event, WorkerLeft) else event.worker.id
            self.in_flight = {i: a for i, a in self.in_flight.items() if a.worker_id != gone}
        last_id = max(self.done, default=0)
        commands = self.core.handle(event, self.now)
        self.log.append((self.now, event, commands))
        assert len(commands) <= 20 + 10 * len(self.jobs) + 70 * len(self.workers)
        for command in commands:
            match command:
                case Dispatch(assignment):
                    assert assignment.id > last_id
                    last_id = assignment.id
                    assert assignment.worker_id in self.workers
                    self.in_flight[assignment.id] = assignment
                    self.done[assignment.id] = 0
                case Stop(assignment_id):
                    assert assignment_id in self.in_flight
                case Revoke(assignment_id):
                    del self.in_flight[assignment_id]
                case Finish(job_id) | Fail(job_id) | Reject(job_id) | Expire(job_id):
                    assert job_id not in self.outcomes, "a job ends once"
                    self.outcomes[job_id] = command
                    if isinstance(command, Finish):
                        assert len(self.recorded[job_id]) == self.jobs[job_id].queries
        self.check()

    def _record(self, event: AssignmentEnded | QueriesDone) -> None:
        assignment = self.in_flight.get(event.assignment_id)
        if assignment is None or assignment.job_id in self.outcomes:
            return
        before = self.done[assignment.id]
        if before <= event.done <= assignment.count:
            new = set(range(assignment.first + before, assignment.first + event.done))
            assert new.isdisjoint(self.recorded[assignment.job_id]), "a query is recorded once"
            self.recorded[assignment.job_id] |= new
            self.done[assignment.id] = event.done

    def check(self) -> None:
        core = self.core
        waiting = list(core.state.queue.in_order())
        assert len(waiting) == len(set(map(id, waiting))) == core.queued
        for job in core._jobs.by_id.values():
            places = [set(range(*span)) for span in job.pending._ranges]
            places += [
                set(range(lease.assignment.first + lease.done, stop))
                for lease in job.leases.values()
                for stop in [lease.assignment.first + lease.assignment.count]
            ]
            places.append(self.recorded[job.job.id])
            assert sum(map(len, places)) == job.job.queries
            assert len(set().union(*places)) == job.job.queries
            assert (job in waiting) == (job.assignable > 0)
        assert set(core._jobs.by_id) == set(self.jobs) - set(self.outcomes)
        assert set(core._leases.by_id) == set(self.in_flight)
        held = {
            lease.assignment.id
            for worker in core.state.fleet.workers.values()
            for lease in worker.all_leases()
        }
        assert held == set(self.in_flight)
        for worker in core.state.fleet.workers.values():
            for leases in (worker.leases, *worker.concurrent.values()):
                heads = [lease.is_head for lease in leases.values()]
                assert heads == [True] + [False] * (len(heads) - 1) if heads else True
            for lease in worker.all_leases():
                assert lease.is_head or lease.phase is not LeasePhase.SETUP
                assert lease.stopping or not lease.job.removed
            available = worker in core.state.fleet.available(self.now)
            assert available == (worker.next_available_at(core.state.settings) <= self.now)
        wakeup = core.wakeup()
        assert wakeup is None or wakeup > self.now


def drive(
    world: World, data: st.DataObject, steps: int, actions: Sequence[Action] | None = None
) -> None:
    """Apply `steps` random events."""
    for number in range(steps):
        world.now += data.draw(st.sampled_from([0.0, 0.0, 0.01, 0.3, 2.0]), label="gap")
        choice = data.draw(st.sampled_from(actions or ACTIONS), label="action")
        event = choice(world, data, number)
        if event is not None:
            world.handle(event)


def _submit(world: World, data: st.DataObject, number: int) -> Event:
    draw = data.draw
    queries = draw(st.integers(1, MAX_QUERIES))
    perishable = draw(st.booleans())
    job = domain.Job(
        id=domain.JobId(f"job-{number}"),
        engine=draw(st.sampled_from(ENGINES)),
        queries=queries,
        arrival=world.now,
        deadline=world.now + draw(st.sampled_from([0.2, 1.0, 4.0, 30.0, math.inf])),
        priority=draw(st.sampled_from([0, 0, 9])),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        perishable=perishable,
        with_tensors=draw(st.booleans()),
    )
    done = draw(st.sampled_from([(), ((0, queries // 2),), ((1, 3), (0, 2), (5, MAX_QUERIES))]))
    done = tuple((a, min(b, queries)) for a, b in done if a < min(b, queries))
    world.jobs[job.id] = job
    world.recorded[job.id] = {i for a, b in done for i in range(a, b)}
    return JobArrived(job, ready=draw(st.integers(0, queries)), done=done)


def _request(world: World, data: st.DataObject, number: int) -> Event:
    job = domain.Job(
        id=domain.JobId(f"request-{number}"),
        engine=data.draw(st.sampled_from(ENGINES[:2])),
        queries=1,
        arrival=world.now,
        deadline=world.now + data.draw(st.sampled_from([4.0, 30.0, math.inf])),
        perishable=True,
        with_tensors=True,
    )
    world.jobs[job.id], world.recorded[job.id] = job, set()
    return JobArrived(job, ready=1)


def _submit_again(world: World, data: st.DataObject, _: int) -> Event | None:
    waiting = sorted(set(world.jobs) - set(world.outcomes))
    if not waiting:
        return None
    job = world.jobs[data.draw(st.sampled_from(waiting))]
    return JobArrived(job, ready=job.queries)


def _make_ready(world: World, data: st.DataObject, _: int) -> Event | None:
    if not world.jobs:
        return None
    job_id = data.draw(st.sampled_from(sorted(world.jobs)))
    return QueriesReady(job_id, data.draw(st.integers(0, world.jobs[job_id].queries)))


def _cancel(world: World, data: st.DataObject, _: int) -> Event | None:
    known = sorted(world.jobs)
    if not known:
        return None
    job_id = data.draw(st.sampled_from(known))
    world.outcomes.setdefault(job_id, None)
    return JobCancelled(job_id)


def _join(world: World, data: st.DataObject, _: int) -> Event:
    draw = data.draw
    worker = Worker(
        id=domain.WorkerId(draw(st.sampled_from(["w1", "w2", "w3", "w4"]))),
        worker_class=draw(st.sampled_from(CLASSES)),
        engines=frozenset(draw(st.sets(st.sampled_from(ENGINES)))),
        configurations=CONFIGURATIONS,
        sessions=frozenset({domain.Session(ENGINES[0], CONFIGURATIONS[1])}),
        keeps_sessions=draw(st.booleans()),
        cores=draw(st.integers(0, 4)),
    )
    world.workers.add(worker.id)
    return WorkerJoined(worker)


def _change_worker(_world: World, data: st.DataObject, _: int) -> Event | None:
    worker_id = domain.WorkerId(data.draw(st.sampled_from(["w1", "w2", "w3", "never-seen"])))
    session = domain.Session(data.draw(st.sampled_from(ENGINES)), CONFIGURATIONS[1])
    events: list[Event] = [
        WorkerLeft(worker_id),
        WorkerDraining(worker_id),
        EnginesChanged(worker_id, frozenset(ENGINES[1:])),
        SessionLoaded(worker_id, session, 0.7),
        SessionDropped(worker_id, session),
        ModeChanged(worker_id, data.draw(st.sampled_from(["", "m"])), 0.3),
        AssignmentsRevoked(worker_id),
    ]
    return data.draw(st.sampled_from(events))


def _assignment(world: World, data: st.DataObject) -> tuple[domain.AssignmentId, int]:
    """Return an assignment in flight or, rarely, an ended one; and its number of queries."""
    known = sorted(world.done)
    if world.in_flight and bool(data.draw(st.integers(0, 5))):
        known = sorted(world.in_flight)
    if not known:
        return domain.AssignmentId(999_999), 1
    assignment_id = data.draw(st.sampled_from(known))
    assignment = world.in_flight.get(assignment_id)
    return assignment_id, assignment.count if assignment else MAX_QUERIES


def _seconds(data: st.DataObject, usual: float) -> float:
    """Return what a worker says that something took."""
    return data.draw(st.sampled_from([usual, usual, usual, 0.0, 5e-324, 1e-12, 1e9]))


def _start(world: World, data: st.DataObject, _: int) -> Event:
    return AssignmentStarted(_assignment(world, data)[0], _seconds(data, 0.4))


def _progress(world: World, data: st.DataObject, _: int) -> Event:
    assignment_id, count = _assignment(world, data)
    return QueriesDone(assignment_id, data.draw(st.integers(0, count + 1)), _seconds(data, 0.1))


def _end(world: World, data: st.DataObject, _: int) -> Event:
    assignment_id, count = _assignment(world, data)
    outcome = data.draw(st.sampled_from([domain.Outcome.COMPLETED, *domain.Outcome]))
    done = count if outcome is domain.Outcome.COMPLETED else data.draw(st.integers(0, count + 1))
    if not data.draw(st.integers(0, 20)):
        done //= 2
    fault = data.draw(st.sampled_from(list(domain.Fault)))
    return AssignmentEnded(assignment_id, done, outcome, fault, "why", _seconds(data, 0.2))


def _profile(_world: World, data: st.DataObject, _: int) -> Event:
    entries = tuple(
        new_entry(
            data.draw(st.sampled_from(ENGINES)),
            data.draw(st.sampled_from(CLASSES)),
            data.draw(st.sampled_from([1.0, 300.0])),
            CONFIGURATIONS[0],
        )
        for _ in range(data.draw(st.integers(1, 3)))
    )
    return ProfilesAdded(entries) if data.draw(st.booleans()) else ProfilesRemoved(entries)


def _wake(world: World, _data: st.DataObject, _: int) -> Event:
    wakeup = world.core.wakeup()
    world.now = world.now if wakeup is None else wakeup
    return TimePassed()


def _check_progress(world: World, data: st.DataObject, _: int) -> Event:
    world.now += data.draw(st.sampled_from([0.0, 100.0, 5000.0]))
    return ProgressChecked()


Action: TypeAlias = Callable[[World, st.DataObject, int], Event | None]

ACTIONS: Final[Sequence[Action]] = [
    *[_submit] * 6,
    *[_request] * 4,
    *[_end] * 6,
    *[_progress] * 3,
    *[_start] * 2,
    *[_join] * 3,
    *[_wake] * 3,
    _check_progress,
    _submit_again,
    _make_ready,
    _cancel,
    _change_worker,
    _profile,
]


def make_world(data: st.DataObject, policy: str) -> World:
    chosen = SchedulingSettings(
        policy=policy,
        infeasible=data.draw(st.sampled_from(["defer", "reject"])),
        objective=data.draw(st.sampled_from(["latency", "energy"])),
        prefetch_s=data.draw(st.sampled_from([0.0, 0.02, 1.0])),
        prefetch_count=data.draw(st.sampled_from([1, 3, 64])),
        fair_burst_s=data.draw(st.sampled_from([0.0, 60.0])),
    )
    return World(SchedulerCore(chosen, make_dictionary()))


@pytest.mark.parametrize("policy", POLICIES.names())
@settings(max_examples=20)
@given(data=st.data())
def test_queries_are_conserved_wakeups_stop_and_commands_follow_from_the_events(
    policy: str, data: st.DataObject
) -> None:
    world = make_world(data, policy)
    drive(world, data, data.draw(st.integers(1, 40)))
    if data.draw(st.booleans(), label="nothing happens for a while"):
        let_time_pass(world)
    finish(world)
    assert set(world.jobs) == set(world.outcomes)
    again = SchedulerCore(world.core.state.settings, make_dictionary())
    for now, event, commands in world.log:
        assert again.handle(event, now) == commands


def let_time_pass(world: World) -> None:
    """Handle wakeups until there are none."""
    for _ in range(8 * (len(world.jobs) + len(world.workers)) + 20):
        wakeup = world.core.wakeup()
        if wakeup is None:
            return
        world.now = wakeup
        world.handle(TimePassed())
    raise AssertionError(f"wakeups do not stop, the next is at {world.core.wakeup()}")


def finish(world: World) -> None:
    """Add a reliable worker and let it finish all remaining jobs."""
    honest = Worker(
        id=domain.WorkerId("honest"),
        worker_class=CLASSES[0],
        engines=frozenset(ENGINES),
        configurations=CONFIGURATIONS,
    )
    world.workers.add(honest.id)
    for worker_id in sorted(world.workers):
        world.handle(WorkerLeft(worker_id))
    world.handle(WorkerJoined(honest))
    for job in world.jobs.values():
        world.handle(QueriesReady(job.id, job.queries))
    for _ in range(40 * (len(world.jobs) + 1)):
        if world.in_flight:
            world.now += 0.1
            assignment = world.in_flight[min(world.in_flight)]
            world.handle(AssignmentEnded(assignment.id, assignment.count, domain.Outcome.COMPLETED))
        elif wakeup := world.core.wakeup():
            world.now = wakeup
            world.handle(TimePassed())
