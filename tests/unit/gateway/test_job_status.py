"""A job's record, tracker, status and phases."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.calls.servicers.jobs import JobResults, JobsServicer
from gateway.entry.access.caller import UNRESTRICTED
from gateway.jobs.submitted import SubmittedJobs
from gateway.jobs.submitted_job import TRANSITIONS, Phase, SubmittedJob, new_job_record
from gateway.jobs.uploads import InputUploads
from gateway.journal.job_record import (
    Executions,
    JobTracker,
    RecordedExecution,
    RecordedJob,
    merge_adjacent,
)
from gateway.journal.store import StoreFull
from synergai.core.scheduling.events import Assignment
from synergai.domain import EngineName, Fault, JobId, WorkerId
from synergai.errors import (
    EngineUnusable,
    IdempotencyConflict,
    InvalidInput,
    Overloaded,
    SynergaiError,
)
from synergai.jobs import JobSpec, JobState, JobStatus
from synergai.runtime.clock import Clock
from synergai.v1 import jobs_pb2
from synergai.wire.converters import job_status_from_proto, job_status_to_proto
from synergai.wire.memory_bounds import UnreadResponses
from synergai.wire.server_call import ServerCall
from tests.cores import new_assignment
from tests.unit.gateway import test_journal
from tests.unit.gateway.conftest import GatewayHarness
from tests.unit.gateway.test_journal import an_execution

W1 = WorkerId("w1")


def a_record(state: JobState = JobState.QUEUED, **fields: Any) -> RecordedJob:
    return replace(test_journal.a_record("a", 10, 5.0), state=state, **fields)


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
    record = a_record(submitted_at=clock.to_unix(90.0))
    tracker = JobTracker(record, clock, lambda _job, now: now + 2.0)
    assert tracker.record_dispatch(an_assignment(10, probe=True), 100.0)
    assert tracker.record.estimated_s is None
    tracker.record_execution(an_assignment(10), an_execution(0, 4))
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
    tracker.record_execution(an_assignment(10), an_execution(0, done))


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


async def test_watcher_sees_progress_at_intervals_and_the_end_at_once() -> None:
    tracker = JobTracker(a_record(), Clock(), lambda _job, _now: None)
    watch = tracker.watch()
    await anext(watch)
    await check_only_the_end_is_seen(tracker, watch)


async def test_watcher_sees_progress_after_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.journal.job_record.PROGRESS_INTERVAL_S", 0.01)
    tracker = JobTracker(a_record(), Clock(), lambda _job, _now: None)
    watch = tracker.watch()
    await anext(watch)
    record_progress(tracker, 3)
    assert (await anext(watch)).queries_done == 3


async def test_watcher_waits_longer_after_a_status_with_many_executions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.journal.job_record.PROGRESS_INTERVAL_S", 0.0)
    many = tuple(
        replace(an_execution(number, 1), worker_id=WorkerId(f"w{number % 2}"))
        for number in range(10_000)
    )
    spec = JobSpec(engine=EngineName("echo"), queries=20_000)
    tracker = JobTracker(a_record(executions=many, spec=spec), Clock(), lambda _job, _now: None)
    watch = tracker.watch()
    assert len((await anext(watch)).executions) == 10_000
    await check_only_the_end_is_seen(tracker, watch)


# --- submission ---------------------------------------------------------------------------------


class _SlowJobs:
    """Jobs whose list takes two turns of the event loop."""

    def __init__(self) -> None:
        self.listing = 0
        self.most_at_once = 0

    async def list(self, *_: object) -> list[JobStatus]:
        self.listing += 1
        self.most_at_once = max(self.most_at_once, self.listing)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.listing -= 1
        return []


async def test_jobs_are_listed_for_one_caller_at_a_time() -> None:
    jobs = _SlowJobs()
    servicer = JobsServicer(
        cast("SubmittedJobs", jobs),
        cast("InputUploads", None),
        cast("JobResults", None),
        cast("UnreadResponses", None),
    )
    context = cast("ServerCall", None)
    await asyncio.gather(*(servicer.list(jobs_pb2.ListRequest(), context) for _ in range(5)))
    assert jobs.most_at_once == 1


SPEC = JobSpec(engine=EngineName("echo"), queries=10)


async def test_job_submitted_again_is_found_even_if_new_jobs_are_refused(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.jobs.submitted.MAX_JOBS", 2)
    harness.add_worker()
    first = await harness.jobs.submit(UNRESTRICTED, SPEC, "key")
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    with pytest.raises(Overloaded):
        await harness.jobs.submit(UNRESTRICTED, SPEC, "another key")
    assert (await harness.jobs.submit(UNRESTRICTED, SPEC, "key")).id == first.id
    with pytest.raises(IdempotencyConflict):
        await harness.jobs.submit(UNRESTRICTED, structs.replace(SPEC, queries=11), "key")


@pytest.mark.parametrize("key", ["a\nb", "k" * 257], ids=["not printable", "too long"])
async def test_unsuitable_key_is_refused(harness: GatewayHarness, key: str) -> None:
    harness.add_worker()
    with pytest.raises(InvalidInput, match="an idempotency key has at most 256 characters"):
        await harness.jobs.submit(UNRESTRICTED, SPEC, key)


async def test_job_without_samples_is_refused(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    unverified = structs.replace(worker.engines[SPEC.engine], samples=0, unverified="it fails")
    harness.catalogue.update(worker.id, unverified)
    with pytest.raises(EngineUnusable, match="no samples"):
        await harness.jobs.submit(UNRESTRICTED, SPEC)


REACHED_BY: dict[Phase, str] = {
    Phase.OPENING: "",
    Phase.RUNNING: "start",
    Phase.PAUSED: "start pause",
    Phase.ENDING: "start end",
    Phase.UNRECORDED: "start end store_full",
    Phase.ENDED: "start end recorded",
}
"""The calls that lead to each phase."""
LEADS_TO: dict[str, dict[Phase, Phase]] = {
    "start": {Phase.OPENING: Phase.RUNNING, Phase.PAUSED: Phase.RUNNING},
    "pause": {Phase.RUNNING: Phase.PAUSED},
    "resume": {Phase.PAUSED: Phase.RUNNING, Phase.UNRECORDED: Phase.ENDING},
    "end": dict.fromkeys(
        (Phase.OPENING, Phase.RUNNING, Phase.PAUSED, Phase.UNRECORDED), Phase.ENDING
    ),
    "recorded": {Phase.ENDING: Phase.ENDED},
    "store_full": {Phase.ENDING: Phase.UNRECORDED},
}
"""The phase to which each call leads, from the phases in which it leads to another."""


class Journal:
    """Records an end once the test says so."""

    def record_end(self, _record: object) -> asyncio.Future[None]:
        self.recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self.recorded

    def answer(self, error: SynergaiError | None) -> None:
        if error is None:
            self.recorded.set_result(None)
        else:
            self.recorded.set_exception(error)


class Dispatcher:
    def __init__(self) -> None:
        self.has_job = False

    def submit(self, *_args: object, **_fields: object) -> None:
        self.has_job = True

    def suspend(self, _job_id: object) -> None:
        self.has_job = False


class WholeEngines:
    """No engine runs in stages."""

    @property
    def routes(self) -> "WholeEngines":
        return self

    def route(self, _spec: JobSpec) -> None:
        """Return no route."""


class Phases:
    """A job under test."""

    def __init__(
        self, executions: tuple[RecordedExecution, ...] = (), max_failures: int | None = None
    ) -> None:
        clock, self.journal, self.dispatcher = Clock(), Journal(), Dispatcher()
        upload_id = "" if max_failures is None else "upload"
        spec = JobSpec(
            engine=EngineName("echo"), queries=1, upload_id=upload_id, max_failures=max_failures
        )
        record = replace(new_job_record(spec, clock), executions=executions)
        tracker = JobTracker(record, clock, lambda *_: None)
        self.seen: list[Phase] = []
        self.job = SubmittedJob(
            tracker,
            None,
            cast("Any", self.dispatcher),
            cast("Any", self.journal),
            lambda job: self.seen.append(job.phase),
            cast("Any", WholeEngines()),
        )

    def end(self) -> None:
        self.dispatcher.has_job = False  # it forgets a job before it tells of its end
        self.job.on_ended(JobState.CANCELLED, "", Fault.UNSPECIFIED, 1.0)

    async def make(self, call: str) -> None:
        calls: dict[str, Callable[[], None]] = {
            "start": self.job.start,
            "pause": self.job.pause,
            "resume": self.job.resume,
            "end": self.end,
            "recorded": lambda: self.journal.answer(None),
            "store_full": lambda: self.journal.answer(StoreFull()),
        }
        calls[call]()
        await asyncio.sleep(0)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("call", ["start", "pause", "resume", "end"])
async def test_call_leads_to_the_next_phase_or_changes_nothing(call: str, phase: Phase) -> None:
    phases = Phases()
    for each in REACHED_BY[phase].split():
        await phases.make(each)
    assert phases.job.phase is phase
    following = LEADS_TO[call].get(phase)
    if following is None and call in ("start", "end"):
        with pytest.raises(RuntimeError, match="before"):
            await phases.make(call)
    else:
        await phases.make(call)
    assert phases.job.phase is (following or phase)
    assert phases.dispatcher.has_job == (phases.job.phase is Phase.RUNNING)


def test_table_has_exactly_the_transitions_of_the_calls() -> None:
    found: dict[Phase, set[Phase]] = {phase: set() for phase in Phase}
    for transitions in LEADS_TO.values():
        for before, after in transitions.items():
            found[before].add(after)
    assert {phase: set(after) for phase, after in TRANSITIONS.items()} == found


@pytest.mark.parametrize(("limit", "phase"), [(0, Phase.ENDING), (1, Phase.RUNNING)])
async def test_job_that_resumes_with_too_many_failures_does_not_run(
    limit: int, phase: Phase
) -> None:
    phases = Phases((replace(an_execution(0, 1), failures=1),), limit)
    await phases.make("start")
    assert phases.job.phase is phase
    assert phases.dispatcher.has_job == (phase is Phase.RUNNING)


FAST, SLOW = WorkerId("fast"), WorkerId("slow")


def assigned(number: int, first: int, count: int, worker: WorkerId) -> Assignment:
    return new_assignment(number, "echo", worker, count, job_id=JobId("a"), first=first)


def done_of(assignment: Assignment, count: int) -> RecordedExecution:
    execution = an_execution(assignment.first, count)
    return replace(execution, worker_id=assignment.worker_id, seconds=count / 10)


@given(st.data())
def test_executions_equal_the_merged_last_reports(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, 29), max_size=6)))
    edges = [0, *cuts, 30]
    assignments = [
        assigned(number, first, stop - first, data.draw(st.sampled_from([FAST, SLOW])))
        for number, (first, stop) in enumerate(pairwise(edges))
    ]
    executions = Executions()
    last: dict[int, RecordedExecution] = {}
    for assignment in data.draw(st.permutations(assignments)):
        reports = data.draw(st.sets(st.integers(1, assignment.count), min_size=1, max_size=3))
        for count in sorted(reports):
            last[assignment.id] = done_of(assignment, count)
            executions.record(assignment, last[assignment.id])
    expected = merge_adjacent(last.values())
    assert executions.queries == sum(each.count for each in expected)
    found = executions.ranges()
    assert [(e.worker_id, e.first, e.count, e.labelled, e.correct) for e in found] == [
        (e.worker_id, e.first, e.count, e.labelled, e.correct) for e in expected
    ]
    assert [e.seconds for e in found] == pytest.approx([e.seconds for e in expected])
