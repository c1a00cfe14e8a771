"""A job's record, tracker and status."""

import asyncio
import math
from collections.abc import AsyncGenerator

import pytest

from gateway.jobs.tracker import JobTracker, ProgressRate
from gateway.journal.job_record import RecordedExecution, RecordedJob
from synergai.core.scheduling.events import Assignment
from synergai.domain import Configuration, EngineName, JobId, WorkerId
from synergai.jobs import JobSpec, JobState, JobStatus
from synergai.runtime.clock import Clock
from synergai.wire.converters import job_status_from_proto, job_status_to_proto
from tests.cores import new_assignment

W1 = WorkerId("w1")


def a_record(state: JobState = JobState.QUEUED, **fields: object) -> RecordedJob:
    values: dict[str, object] = {
        "id": JobId("a"),
        "spec": JobSpec(engine=EngineName("echo"), queries=10, qos=5.0),
        "state": state,
        "submitted_at": 100.0,
    }
    return RecordedJob(**(values | fields))  # type: ignore[arg-type]  # a test's own fields


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


def an_assignment(count: int, *, probe: bool = False) -> Assignment:
    return new_assignment(1, "echo", W1, count, job_id=JobId("a"), first=10 - count, probe=probe)


def test_estimate_after_a_probe_counts_from_the_first_dispatch() -> None:
    clock = Clock()
    tracker = JobTracker(
        a_record(submitted_at=clock.to_unix(90.0)),
        clock,
        lambda _job, now: now + 2.0,
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
