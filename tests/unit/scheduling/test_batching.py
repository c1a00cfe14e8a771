"""Single queries of an engine with profiled batches."""

import math
import time
from pathlib import Path

import pytest

from synergai.domain import (
    Configuration,
    EngineName,
    Job,
    JobId,
    Outcome,
    Session,
    WorkerClass,
    WorkerId,
)
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.event_log import EventLog, replay
from synergai.scheduling.events import (
    AssignmentEnded,
    Event,
    JobArrived,
    Worker,
    WorkerJoined,
)
from synergai.scheduling.settings import SchedulingSettings
from tests.cores import dispatched, make_core

BATCHED, SINGLE = EngineName("batched"), EngineName("single")
ONE = Configuration(1)
ENTRIES = (
    ProfileEntry(
        engine=BATCHED,
        worker_class=WorkerClass("c"),
        configuration=ONE,
        qps=10.0,
        batch_qps=(16.0, 20.0),
    ),
    ProfileEntry(engine=SINGLE, worker_class=WorkerClass("c"), configuration=ONE, qps=10.0),
)
JOINED = WorkerJoined(
    Worker(
        id=WorkerId("w"),
        worker_class=WorkerClass("c"),
        engines=frozenset({BATCHED, SINGLE}),
        configurations=(ONE,),
        sessions=frozenset({Session(BATCHED, ONE), Session(SINGLE, ONE)}),
    )
)


def core_with_worker() -> SchedulerCore:
    return make_core(ENTRIES, [JOINED.worker], policy="synergai")


def make_request(
    number: int, engine: EngineName = BATCHED, deadline: float = math.inf
) -> JobArrived:
    job = Job(
        id=JobId(f"r{number}"),
        engine=engine,
        queries=1,
        arrival=0.0,
        deadline=deadline,
        perishable=True,
        with_tensors=True,
    )
    return JobArrived(job, ready=1)


def test_worker_gets_one_batch_ahead() -> None:
    core = core_with_worker()
    given = [len(dispatched(core.handle(make_request(number), 0.0))) for number in range(12)]
    assert given == [1] * 8 + [0] * 4


def test_engine_without_batches_is_not_assigned_ahead() -> None:
    core = core_with_worker()
    given = [len(dispatched(core.handle(make_request(number, SINGLE), 0.0))) for number in range(3)]
    assert given == [1, 0, 0]


def test_assignment_of_another_engine_ends_batching() -> None:
    core = core_with_worker()
    for number, engine in enumerate((BATCHED, SINGLE)):
        assert dispatched(core.handle(make_request(number, engine), 0.0))
    assert not dispatched(core.handle(make_request(2), 0.0))


def test_assignment_carries_batch_times_and_compute_by() -> None:
    core = core_with_worker()
    [first] = dispatched(core.handle(make_request(0, deadline=9.0), 0.0))
    assert first.batch_times is not None
    assert first.batch_times.by_size == pytest.approx((0.1, 0.125, 0.2))
    assert first.compute_by == 9.0
    [other] = dispatched(core_with_worker().handle(make_request(1, SINGLE, deadline=9.0), 0.0))
    assert (other.batch_times, other.compute_by) == (None, math.inf)


def test_batched_queries_are_estimated_at_their_share_of_a_batch() -> None:
    core = core_with_worker()
    for number in range(4):
        core.handle(make_request(number), 0.0)
    assert core.state.fleet.workers[WorkerId("w")].free_at(0.0) == pytest.approx(0.1 + 3 * 0.05)


def test_multi_query_jobs_are_not_batched() -> None:
    job = Job(id=JobId("job"), engine=BATCHED, queries=9, arrival=0.0)
    [assignment] = dispatched(core_with_worker().handle(JobArrived(job, ready=9), 0.0))
    assert assignment.batch_times is None


def test_pace_is_independent_of_batch_size() -> None:
    """At half the profiled speed, a single query is estimated at twice its profiled time."""
    core = core_with_worker()
    given = [a for number in range(4) for a in dispatched(core.handle(make_request(number), 0.0))]
    for _ in range(300):
        now = core.state.now + 0.4
        for assignment in given:
            ended = AssignmentEnded(
                assignment.id, 1, Outcome.COMPLETED, compute_s=0.4, batch=len(given)
            )
            core.handle(ended, now)
        number = given[-1].id
        given = [
            assignment
            for index in range(4)
            for assignment in dispatched(core.handle(make_request(number * 10 + index), now))
        ]
    assert given[0].batch_times is not None
    assert given[0].batch_times.by_size == pytest.approx((0.2, 0.25, 0.4), rel=0.02)


def test_recorded_batches_replay(tmp_path: Path) -> None:
    core = SchedulerCore(
        SchedulingSettings(policy="synergai"), ConfigurationDictionary(ENTRIES), epoch=1
    )
    events: list[Event] = [JOINED, *(make_request(number, deadline=5.0) for number in range(3))]
    with EventLog(
        tmp_path / "log",
        SchedulingSettings(policy="synergai"),
        ConfigurationDictionary(ENTRIES),
        epoch=1,
    ) as log:
        for event in events:
            log.record(event, 0.0, core.handle(event, 0.0))
    replayed = list(replay(tmp_path / "log", time.thread_time))
    assert [step.recorded for step in replayed] == [step.replayed for step in replayed]
    assert sum(len(dispatched(step.replayed)) for step in replayed) == 3
