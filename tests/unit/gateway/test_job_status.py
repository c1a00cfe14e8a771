"""A job's record, tracker and status."""

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from gateway.jobs.estimate_errors import PRIOR, PRIOR_FIXED_S, EstimateErrors
from gateway.jobs.tracker import JobTracker, ProgressRate
from gateway.journal.executions import RecordedExecution
from gateway.journal.job_record import JobRecord
from synergai.domain import Configuration, EngineName, JobId, JobSpec, JobState, WorkerId
from synergai.jobs import JobStatus
from synergai.protocol.converters import (
    job_spec_from_proto,
    job_spec_to_proto,
    job_status_from_proto,
    job_status_to_proto,
)
from synergai.runtime.clock import Clock
from synergai.scheduling.events import Assignment
from tests.cores import new_assignment

W1 = WorkerId("w1")


def a_record(state: JobState = JobState.QUEUED, **fields: object) -> JobRecord:
    values: dict[str, object] = {
        "id": JobId("a"),
        "spec": JobSpec(engine=EngineName("echo"), queries=10, qos=5.0),
        "state": state,
        "submitted_at": 100.0,
    }
    return JobRecord(**(values | fields))  # type: ignore[arg-type]  # a test's own fields


def a_status(
    state: JobState = JobState.QUEUED, *, now: float = 103.0, **fields: object
) -> JobStatus:
    return a_record(state, **fields).status(now)


@pytest.mark.parametrize(
    ("status", "violated", "excess_s"),
    [
        (a_status(), False, 0.0),
        (a_status(now=106.0), True, 1.0),
        (a_status(JobState.SUCCEEDED, finished_at=104.0, now=999.0), False, 0.0),
        (a_status(JobState.SUCCEEDED, finished_at=107.5), True, 2.5),
        (a_status(JobState.REJECTED, finished_at=100.1), True, 0.0),
        (a_status(JobState.FAILED, finished_at=101.0), True, 0.0),
        (a_status(JobState.CANCELLED, finished_at=101.0), False, 0.0),
        (
            a_status(JobState.FAILED, finished_at=999.0, spec=JobSpec(engine=EngineName("echo"))),
            False,
            0.0,
        ),
    ],
)
def test_violation_is_a_missed_or_infeasible_deadline(
    status: JobStatus, violated: bool, excess_s: float
) -> None:
    assert (status.violated, status.excess_s) == (violated, excess_s)


def test_times_are_counted_from_submission_and_first_dispatch() -> None:
    status = a_status(JobState.SUCCEEDED, dispatched_at=101.5, finished_at=104.0)
    assert (status.waited_s, status.actual_s) == (1.5, 2.5)
    assert a_status().waited_s == 3.0
    assert a_status().actual_s is None


def an_assignment(count: int, *, probe: bool = False) -> Assignment:
    return new_assignment(1, "echo", W1, count, job_id=JobId("a"), first=10 - count, probe=probe)


def test_estimate_after_a_probe_counts_from_the_first_dispatch() -> None:
    clock = Clock()
    tracker = JobTracker(
        a_record(submitted_at=clock.to_unix(90.0)), clock, lambda _job, now: now + 2.0
    )
    assert tracker.record_dispatch(an_assignment(10, probe=True), 100.0)
    assert tracker.record.estimated_s is None
    execution = RecordedExecution(
        worker_id=W1, configuration=Configuration(1), first=0, count=4, seconds=3.0
    )
    tracker.record_execution(an_assignment(10), execution)
    assert tracker.record_dispatch(an_assignment(6), 103.0)
    assert tracker.record.estimated_s == pytest.approx(5.0)
    assert not tracker.record_dispatch(an_assignment(6), 104.0)
    assert tracker.snapshot().waited_s == pytest.approx(10.0)


def test_estimate_waits_until_the_completion_can_be_expected() -> None:
    clock = Clock()
    expected: list[float | None] = [None, 112.0, 150.0]
    tracker = JobTracker(a_record(), clock, lambda _job, _now: expected.pop(0), EstimateErrors())
    assert tracker.record_dispatch(an_assignment(10), 100.0)
    assert tracker.record.estimated_s is None
    assert tracker.record_dispatch(an_assignment(6), 103.0)
    assert tracker.record.estimated_s == pytest.approx(12.0)
    interval = (tracker.record.estimated_low_s, tracker.record.estimated_high_s)
    low, high = PRIOR
    assert interval == pytest.approx((12.0 * low, 12.0 * high + PRIOR_FIXED_S))
    assert not tracker.record_dispatch(an_assignment(4), 104.0)
    assert interval == (tracker.record.estimated_low_s, tracker.record.estimated_high_s)


@pytest.mark.parametrize(
    ("expected_s", "qos", "excess_s"),
    [(4.0, 5.0, 0.0), (17.0, 5.0, 12.0), (17.0, math.inf, None), (None, 5.0, None)],
)
def test_running_job_that_will_miss_its_qos_says_by_how_much(
    expected_s: float | None, qos: float, excess_s: float | None
) -> None:
    record = a_record(JobState.RUNNING, spec=JobSpec(engine=EngineName("echo"), queries=9, qos=qos))
    completes_at = None if expected_s is None else 100.0 + expected_s
    status = record.status(101.0, completes_at=completes_at)
    assert not status.violated
    assert status.remaining_s == (None if expected_s is None else expected_s - 1.0)
    assert status.expected_excess_s == excess_s
    assert job_status_from_proto(job_status_to_proto(status)) == status


def test_ended_job_has_nothing_to_expect() -> None:
    tracker = JobTracker(a_record(), Clock(), lambda _job, now: now + 99.0)
    assert tracker.snapshot().remaining_s == pytest.approx(99.0)
    tracker.record_end(JobState.SUCCEEDED, 5.0)
    assert tracker.snapshot().remaining_s is None
    assert tracker.snapshot().expected_excess_s is None


def record_progress(tracker: JobTracker, done: int) -> None:
    """Record that the first `done` queries of a job have completed."""
    execution = RecordedExecution(
        worker_id=W1, configuration=Configuration(), first=0, count=done, seconds=1.0
    )
    tracker.record_execution(an_assignment(10), execution)


async def check_only_the_end_is_seen(
    tracker: JobTracker, watch: AsyncGenerator[JobStatus, None]
) -> None:
    """Check that a watcher does not see progress yet, and then the end at once."""
    following = asyncio.ensure_future(anext(watch))
    for done in range(1, 4):
        record_progress(tracker, done)
        await asyncio.sleep(0)
    assert not following.done()
    tracker.record_end(JobState.CANCELLED, 5.0)
    assert (await following).state is JobState.CANCELLED


async def test_slow_watcher_sees_the_latest_and_the_end() -> None:
    tracker = JobTracker(a_record(), Clock(), lambda _job, _now: None)
    watch = tracker.watch(ProgressRate(min_interval_s=0.0))
    assert (await anext(watch)).state is JobState.QUEUED
    for number in range(1, 4):
        record_progress(tracker, number)
    assert (await anext(watch)).queries_done == 3
    tracker.record_end(JobState.CANCELLED, 5.0)
    assert [status.state async for status in watch] == [JobState.CANCELLED]


async def test_watcher_sees_progress_at_intervals_and_the_end_at_once() -> None:
    tracker = JobTracker(a_record(), Clock(), lambda _job, _now: None)
    watch = tracker.watch(ProgressRate(min_interval_s=3600.0))
    await anext(watch)
    await check_only_the_end_is_seen(tracker, watch)


async def test_more_watchers_see_progress_less_often() -> None:
    tracker = JobTracker(a_record(), Clock(), lambda _job, _now: None)
    rate = ProgressRate(min_interval_s=0.1, max_per_s=20.0)
    watches = [tracker.watch(rate) for _ in range(5)]
    for number, watch in enumerate(watches, 1):
        await anext(watch)
        assert rate.interval_s() == pytest.approx(max(0.1, number / 20))
    for watch in watches:
        await watch.aclose()
    assert rate.interval_s() == 0.1


async def test_large_statuses_are_sent_less_often() -> None:
    rate = ProgressRate(min_interval_s=0.1, max_per_s=20.0)
    with rate.watching():
        assert rate.interval_s(executions=100) == 0.1
        assert rate.interval_s(executions=15_000) == 1.5


async def test_watcher_waits_longer_after_a_status_with_many_executions() -> None:
    many = tuple(
        RecordedExecution(
            worker_id=WorkerId(f"w{number % 2}"),
            configuration=Configuration(),
            first=number,
            count=1,
            seconds=1.0,
        )
        for number in range(10_000)
    )
    spec = JobSpec(engine=EngineName("echo"), queries=20_000)
    tracker = JobTracker(a_record(executions=many, spec=spec), Clock(), lambda _job, _now: None)
    watch = tracker.watch(ProgressRate(min_interval_s=0.0))
    assert len((await anext(watch)).executions) == 10_000
    await check_only_the_end_is_seen(tracker, watch)


# --- conversion -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [2.5, math.inf])
def test_specification_round_trips(qos: float) -> None:
    spec = JobSpec(engine=EngineName("echo"), queries=7, qos=qos, priority=9, tenant="lab")
    assert job_spec_from_proto(job_spec_to_proto(spec)) == spec


def test_unknown_times_are_unset_on_the_wire() -> None:
    message = job_status_to_proto(a_status())
    assert not message.HasField("estimated_s")
    assert not message.HasField("estimated_low_s")
    assert not message.HasField("estimated_high_s")
    assert not message.HasField("actual_s")
    assert not message.HasField("finished_at")
    ended = job_status_to_proto(
        a_status(JobState.SUCCEEDED, dispatched_at=101.0, finished_at=104.5, estimated_s=3.0)
    )
    assert (ended.estimated_s, ended.actual_s) == (3.0, 3.5)
    assert ended.finished_at.ToNanoseconds() == 104_500_000_000


def test_status_round_trips() -> None:
    executions = tuple(
        RecordedExecution(
            worker_id=W1, configuration=Configuration(2, "MAXN"), first=first, count=2, seconds=0.5
        )
        for first in (0, 4)
    )
    status = a_status(
        JobState.SUCCEEDED,
        submitted_at=100.25,
        dispatched_at=101.0,
        finished_at=104.5,
        estimated_s=3.0,
        estimated_low_s=2.5,
        estimated_high_s=4.5,
        executions=executions,
        reason="why",
    )
    received = job_status_from_proto(job_status_to_proto(status))
    assert [(e.worker_id, e.configuration, e.first, e.count) for e in received.executions] == [
        (e.worker_id, e.configuration, e.first, e.count) for e in executions
    ]
    assert replace(received, executions=()) == replace(status, executions=())
