"""Executions of a job's tracker."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jobs.tracker import JobTracker
from gateway.journal.job_record import Executions, RecordedExecution, RecordedJob, merge_adjacent
from synergai.core.scheduling.events import Assignment
from synergai.domain import EngineName, JobId, WorkerId
from synergai.jobs import JobSpec, JobState
from synergai.runtime.clock import Clock
from tests.cores import new_assignment

FAST, SLOW = WorkerId("fast"), WorkerId("slow")
QUERIES = 50


def an_assignment(
    number: int,
    first: int,
    count: int,
    *,
    worker: WorkerId = FAST,
) -> Assignment:
    return new_assignment(number, "echo", worker, count, job_id=JobId("a"), first=first)


def done_of(assignment: Assignment, count: int) -> RecordedExecution:
    return RecordedExecution(
        worker_id=assignment.worker_id,
        configuration=assignment.configuration,
        first=assignment.first,
        count=count,
        seconds=count / 10,
        labelled=count,
        correct=count // 2,
    )


@pytest.fixture
def tracker() -> JobTracker:
    record = RecordedJob(
        id=JobId("a"),
        spec=JobSpec(engine=EngineName("echo"), queries=QUERIES),
        state=JobState.QUEUED,
        submitted_at=0.0,
    )
    return JobTracker(record, Clock(), lambda _job, _now: None)


@given(st.data())
def test_executions_equal_the_merged_last_reports(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, 29), max_size=6)))
    edges = [0, *cuts, 30]
    assignments = [
        an_assignment(number, first, stop - first, worker=data.draw(st.sampled_from([FAST, SLOW])))
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
