"""The dispatcher with the real core and journal: what becomes of requests, jobs and reports."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fleet.agent_validation import ProtocolViolation
from gateway.fleet.worker import Halt
from synergai.domain import EngineName, JobSpec, JobState
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineNotFound,
    EngineUnusable,
    InvalidInput,
    NotSupported,
    Overloaded,
    SynergaiError,
    Unavailable,
)
from synergai.oip import inference_pb2 as oip
from synergai.v1 import hub_pb2

RESPONSE = oip.ModelInferResponse(model_name="echo").SerializeToString()
SPEC = JobSpec(engine=EngineName("echo"), queries=10)


def integer(**value: int) -> dict[str, oip.InferParameter]:
    return {name: oip.InferParameter(int64_param=number) for name, number in value.items()}


# --- requests ---------------------------------------------------------------------------------


async def test_request_goes_to_the_worker_and_its_response_comes_back(office: Any) -> None:
    worker = office.join()
    request = office.begin()
    (assignment,) = office.given(worker)
    assert not request.result.done()
    office.end(worker, assignment, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE
    assert office.admission.requests == office.admission.bytes == 0
    assert office.count("requests_total", engine="echo", code="OK") == 1
    assert office.count("goodput_total", engine="echo") == 1


async def test_deadline_is_the_lesser_of_call_and_parameter(office: Any) -> None:
    office.join()
    early = office.begin(10.0, parameters=integer(timeout=2_000_000))
    late = office.begin(3.0, parameters=integer(timeout=20_000_000))
    none = office.begin(parameters=integer(timeout=0))
    budgets = [r.job.deadline - r.job.arrival for r in (early, late, none)]
    assert budgets == pytest.approx([2.0, 3.0, float("inf")])


@pytest.mark.parametrize(("given", "taken"), [(0, 0), (1, 9), (2, 8), (9, 1), (10, 0), (999, 0)])
async def test_priority_one_of_the_protocol_is_our_highest(
    office: Any, given: int, taken: int
) -> None:
    office.join()
    assert office.begin(parameters=integer(priority=given)).job.priority == taken


@pytest.mark.parametrize(
    ("fields", "budget_s", "error"),
    [
        ({"model_name": "nobody"}, None, EngineNotFound),
        ({"raw_input_contents": [b"1"]}, None, InvalidInput),
        ({}, 0.0, DeadlineExceeded),
        ({}, -1.0, DeadlineExceeded),
        ({"parameters": integer(timeout=-5)}, None, InvalidInput),
        ({"parameters": integer(sequence_id=1)}, None, NotSupported),
    ],
)
async def test_request_that_cannot_be_served_is_refused_at_the_door(
    office: Any, fields: dict[str, Any], budget_s: float | None, error: type[SynergaiError]
) -> None:
    worker = office.join()
    with pytest.raises(error):
        office.begin(budget_s, **fields)
    assert not office.orders(worker)
    assert office.admission.requests == 0


async def test_request_beyond_the_bound_is_shed(office: Any) -> None:
    office.join()
    for _ in range(4):
        office.begin()
    with pytest.raises(Overloaded):
        office.begin()
    assert office.count("requests_total", engine="echo", code="RESOURCE_EXHAUSTED") == 1


async def test_abandoned_request_frees_its_place_and_stops_its_work(office: Any) -> None:
    worker = office.join()
    request = office.begin()
    (assignment,) = office.given(worker)
    office.inference.abandon(request)
    assert office.orders(worker) == [Halt(assignment.id)]
    assert office.admission.requests == 0
    assert office.count("requests_total", engine="echo", code="CANCELLED") == 1
    assert office.count("violations_total", engine="echo") == 0


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (hub_pb2.FAULT_BAD_INPUT, InvalidInput, "the detail"),
        (hub_pb2.FAULT_ENGINE_BROKEN, EngineUnusable, "fault "),
    ],
)
async def test_workers_fault_becomes_the_clients_error(
    office: Any, fault: hub_pb2.Fault.ValueType, error: type[SynergaiError], text: str
) -> None:
    worker = office.join()
    request = office.begin()
    (assignment,) = office.given(worker)
    report = hub_pb2.Progress(assignment_id=assignment.id)
    ended = hub_pb2.Ended(
        progress=report, outcome=hub_pb2.OUTCOME_FAILED, fault=fault, detail="the detail"
    )
    office.dispatcher.ended(worker, ended)
    with pytest.raises(error, match=text):
        await request.result


async def test_what_a_worker_says_of_a_fault_cannot_steer_a_terminal(office: Any) -> None:
    worker = office.join()
    request = office.begin()
    (assignment,) = office.given(worker)
    ended = hub_pb2.Ended(
        progress=hub_pb2.Progress(assignment_id=assignment.id),
        outcome=hub_pb2.OUTCOME_FAILED,
        fault=hub_pb2.FAULT_BAD_INPUT,
        detail="red \x1b[31m\0",
    )
    office.dispatcher.ended(worker, ended)
    with pytest.raises(SynergaiError) as failed:
        await request.result
    assert str(failed.value).isprintable()


async def test_request_of_a_lost_worker_is_run_by_another(office: Any) -> None:
    first = office.join("first")
    request = office.begin()
    office.dispatcher.left(first)
    second = office.join("second")
    (assignment,) = office.given(second)
    office.end(second, assignment, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE


async def test_stopping_gateway_takes_nothing_new(office: Any) -> None:
    office.join()
    office.admission.close()
    with pytest.raises(Unavailable):
        office.begin()
    with pytest.raises(Unavailable):
        await office.jobs.submit(SPEC)


# --- reports ----------------------------------------------------------------------------------


async def test_report_of_an_assignment_that_is_another_workers_changes_nothing(
    office: Any,
) -> None:
    worker, thief = office.join("w1"), office.join("w2")
    request = office.begin()
    (assignment,) = office.given(worker) or office.given(thief)
    owner, other = (worker, thief) if worker.outstanding else (thief, worker)
    office.end(other, assignment, done=1, responses=[b""])
    assert not request.result.done()
    assert office.count("stale_reports_total") == 1
    office.end(owner, assignment, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE


@pytest.mark.parametrize(
    "progress",
    [
        {"done": 2, "responses": [RESPONSE, RESPONSE]},
        {"done": 0},
        {"done": 1},
        {"done": 1, "responses": [b"\x08"]},
        {"done": 1, "responses": [RESPONSE, RESPONSE]},
        {"done": 1, "responses": [RESPONSE], "labelled": 2},
        {"done": 1, "responses": [RESPONSE], "correct": 1},
        {"done": 1, "responses": [RESPONSE], "compute_s": float("inf")},
    ],
)
async def test_impossible_report_is_a_violation_and_the_request_is_run_again(
    office: Any, progress: dict[str, Any]
) -> None:
    worker = office.join()
    request = office.begin()
    (assignment,) = office.given(worker)
    with pytest.raises(ProtocolViolation):
        office.end(worker, assignment, **progress)
    (again,) = office.given(worker)
    assert again.id > assignment.id
    office.end(worker, again, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE


# --- jobs -------------------------------------------------------------------------------------


async def test_progress_counts_only_when_the_journal_has_it(office: Any) -> None:
    worker = office.join()
    status = await office.jobs.submit(SPEC)
    (assignment,) = office.given(worker)
    report = hub_pb2.Progress(assignment_id=assignment.id, done=4, labelled=4, correct=2)
    office.dispatcher.progress(worker, report)
    assert (await office.jobs.get(status.id)).queries_done == 0
    await office.settled()
    now = await office.jobs.get(status.id)
    assert (now.state, now.queries_done, now.correct) == (JobState.RUNNING, 4, 2)


async def test_worker_that_leaves_right_after_a_report_keeps_what_it_reported(
    office: Any,
) -> None:
    first = office.join("first")
    await office.jobs.submit(SPEC)
    (assignment,) = office.given(first)
    report = hub_pb2.Progress(assignment_id=assignment.id, done=4)
    office.dispatcher.progress(first, report)
    office.dispatcher.left(first)
    second = office.join("second")
    await office.settled()
    (rest,) = office.given(second)
    assert (rest.first, rest.count) == (4, 6)


async def test_job_ends_when_all_its_queries_are_recorded(office: Any) -> None:
    worker = office.join()
    status = await office.jobs.submit(SPEC)
    (assignment,) = office.given(worker)
    office.end(worker, assignment, done=10, labelled=10, correct=9)
    statuses = [s async for s in office.jobs.watch(status.id)]
    last = statuses[-1]
    assert (last.state, last.queries_done, last.correct) == (JobState.SUCCEEDED, 10, 9)
    assert last.estimated_s == pytest.approx(0.1, rel=0.01)
    assert await office.jobs.get(status.id) == last
    assert office.count("jobs_total", engine="echo", state="succeeded") == 1


async def test_cancelled_job_takes_no_more_reports(office: Any) -> None:
    worker = office.join()
    status = await office.jobs.submit(SPEC)
    (assignment,) = office.given(worker)
    cancelled = await office.jobs.cancel(status.id)
    assert cancelled.state is JobState.CANCELLED
    assert office.orders(worker) == [Halt(assignment.id)]
    office.end(worker, assignment, done=10)
    await office.settled()
    assert (await office.jobs.get(status.id)).queries_done == 0


async def test_jobs_beyond_the_bound_are_shed(office: Any) -> None:
    office.join()
    for _ in range(2):
        await office.jobs.submit(SPEC)
    with pytest.raises(Overloaded):
        await office.jobs.submit(SPEC)


async def test_unfinished_jobs_are_restored_with_what_was_done(office: Any) -> None:
    worker = office.join()
    status = await office.jobs.submit(SPEC)
    (assignment,) = office.given(worker)
    report = hub_pb2.Progress(assignment_id=assignment.id, done=4)
    office.dispatcher.progress(worker, report)
    await office.settled()
    later = type(office)(office.journal)
    assert await later.jobs.restore() == 1
    (rest,) = later.given(later.join())
    assert (rest.job_id, rest.first, rest.count) == (status.id, 4, 6)
    later.dispatcher.close()


async def test_request_ends_cancelled_for_whoever_still_looks(office: Any) -> None:
    office.join()
    request = office.begin()
    office.dispatcher.cancel(request.job.id)
    with pytest.raises(Cancelled):
        await request.result


async def test_closed_dispatcher_decides_nothing_more(office: Any) -> None:
    worker = office.join()
    office.dispatcher.close()
    request = office.begin()
    assert office.orders(worker) == []
    assert not request.result.done()
