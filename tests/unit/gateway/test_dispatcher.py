"""The dispatcher with the real scheduling core and journal: requests, jobs and reports."""

import asyncio
import logging

import pytest
from msgspec.structs import replace

from gateway.calls.requests.inference import Request
from gateway.entry.access.caller import UNRESTRICTED
from gateway.fleet.worker import AssignmentProgress, ConnectedWorker, StopAssignment
from synergai.core.scheduling import events
from synergai.domain import REMOVED, AssignmentId, EngineName
from synergai.errors import (
    DeadlineExceeded,
    EngineNotFound,
    EngineUnusable,
    InvalidInput,
    NotSupported,
    Overloaded,
    SynergaiError,
    Unavailable,
)
from synergai.jobs import JobSpec, JobState
from synergai.oip import inference_pb2 as oip
from synergai.v1 import hub_pb2
from synergai.wire.agent_messages import ProtocolViolation
from tests.message_fields import ProgressFields, RequestFields
from tests.unit.gateway.conftest import ENGINE, GatewayHarness, make_worker
from tests.waiting import turns

RESPONSE = oip.ModelInferResponse(model_name="echo").SerializeToString()
SPEC = JobSpec(engine=EngineName("echo"), queries=10)


def integer(**value: int) -> dict[str, oip.InferParameter]:
    return {name: oip.InferParameter(int64_param=number) for name, number in value.items()}


# --- requests ---------------------------------------------------------------------------------


async def test_response_to_a_request_is_handed_over_before_the_scheduler_is_told(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    request, assignment = harness.started(worker)
    assert not request.result.done()
    harness.complete(worker, assignment, done=1, responses=[RESPONSE])
    assert request.result.result() == RESPONSE
    assert harness.admission.requests == 1
    await turns(2)
    assert harness.admission.requests == harness.admission.bytes == 0
    assert harness.metric("requests_total", engine="echo", outcome="ok") == 1
    assert harness.metric("tenant_requests_total", tenant="default", outcome="ok") == 1


def answered_request(harness: GatewayHarness, worker: ConnectedWorker) -> Request:
    """Return a request that an idle worker has answered, before the scheduler learns of it."""
    request, assignment = harness.started(worker)
    harness.complete(worker, assignment, done=1, responses=[RESPONSE])
    return request


async def test_answered_request_is_not_repeated_if_its_worker_leaves(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    answered_request(harness, worker)
    harness.dispatcher.remove_worker(worker)
    assert harness.assignments(harness.add_worker("w2")) == []
    assert harness.admission.requests == 0
    assert harness.metric("requests_total", engine="echo", outcome="ok") == 1


async def test_what_was_handled_is_recorded_at_the_latest_when_the_dispatcher_is_closed(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[events.Event] = []
    monkeypatch.setattr(
        harness.dispatcher, "_recorders", [lambda event, *_: recorded.append(event)]
    )
    harness.add_worker()
    assert recorded == []
    harness.dispatcher.close()
    assert [type(event) for event in recorded] == [events.WorkerJoined]


def fail_next_event(harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scheduler fail at the next event, and only there."""
    core, failures = harness.dispatcher.core, iter([RuntimeError("a bug")])
    handle = core.handle

    def fail_once(event: events.Event, now: float) -> list[events.Command]:
        for failure in failures:
            raise failure
        return handle(event, now)

    monkeypatch.setattr(core, "handle", fail_once)


async def test_event_that_fails_does_not_keep_the_scheduler_from_the_next_answered_request(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [harness.add_worker("w1"), harness.add_worker("w2")]
    for _ in workers:
        harness.begin_request()
    for worker in workers:
        (assignment,) = harness.assignments(worker)
        harness.complete(worker, assignment, done=1, responses=[RESPONSE])
    fail_next_event(harness, monkeypatch)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await turns(2)
    assert harness.admission.requests == 1


async def test_event_that_fails_does_not_keep_the_scheduler_from_the_event_that_flushes_it(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_request(harness, harness.add_worker())
    fail_next_event(harness, monkeypatch)
    failed: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    assert harness.assignments(harness.add_worker("w2")) == []
    harness.begin_request()
    assert len(failed) == 1
    assert len(harness.dispatcher.core.state.fleet.workers) == 2


async def test_request_that_is_abandoned_after_its_response_has_succeeded(
    harness: GatewayHarness,
) -> None:
    request = answered_request(harness, harness.add_worker())
    request.abandon()
    assert harness.metric("requests_total", engine="echo", outcome="ok") == 1
    assert harness.metric("requests_total", engine="echo", outcome="cancelled") == 0


async def test_deadline_is_the_minimum_of_call_and_parameter(harness: GatewayHarness) -> None:
    harness.add_worker()
    early = harness.begin_request(10.0, parameters=integer(timeout=2_000_000))
    late = harness.begin_request(3.0, parameters=integer(timeout=20_000_000))
    none = harness.begin_request(parameters=integer(timeout=0))
    budgets = [r.job.deadline - r.job.arrival for r in (early, late, none)]
    assert budgets == pytest.approx([2.0, 3.0, float("inf")])


@pytest.mark.parametrize(
    ("fields", "budget_s", "error"),
    [
        ({"model_name": "nobody"}, None, EngineNotFound),
        ({"raw_input_contents": [b"1"]}, None, InvalidInput),
        ({}, 0.0, DeadlineExceeded),
        ({}, -1.0, DeadlineExceeded),
        ({"parameters": integer(timeout=-5)}, None, InvalidInput),
        ({"parameters": integer(sequence_id=1)}, None, NotSupported),
        ({"parameters": {"sequence_id": oip.InferParameter(string_param="0")}}, None, NotSupported),
    ],
)
async def test_infeasible_request_is_refused_before_dispatch(
    harness: GatewayHarness,
    fields: RequestFields,
    budget_s: float | None,
    error: type[SynergaiError],
) -> None:
    worker = harness.add_worker()
    with pytest.raises(error):
        harness.begin_request(budget_s, **fields)
    assert not harness.orders(worker)
    assert harness.admission.requests == 0


@pytest.mark.parametrize(
    "parameter",
    [
        oip.InferParameter(int64_param=0),
        oip.InferParameter(uint64_param=0),
        oip.InferParameter(string_param=""),
        oip.InferParameter(),
    ],
    ids=str,
)
async def test_empty_sequence_id_stands_for_no_sequence(
    harness: GatewayHarness, parameter: oip.InferParameter
) -> None:
    worker = harness.add_worker()
    harness.begin_request(parameters={"sequence_id": parameter})
    assert len(harness.assignments(worker)) == 1


async def test_request_beyond_the_limit_is_shed(harness: GatewayHarness) -> None:
    harness.add_worker()
    for _ in range(4):
        harness.begin_request()
    with pytest.raises(Overloaded):
        harness.begin_request()
    assert harness.metric("requests_total", engine="echo", outcome="rejected") == 1


async def test_abandoned_request_releases_admission_and_stops_its_assignment(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    request, assignment = harness.started(worker)
    request.abandon()
    assert harness.orders(worker) == [StopAssignment(assignment.id, abort=True)]
    assert harness.admission.requests == 0
    assert harness.metric("requests_total", engine="echo", outcome="cancelled") == 1
    assert harness.metric("request_deadline_violations_total", engine="echo") == 0


@pytest.mark.parametrize(
    ("fault", "detail", "error", "text"),
    [
        (hub_pb2.FAULT_BAD_INPUT, "red \x1b[31m\0 it", InvalidInput, r"^[ -~]*it$"),  # printable
        (hub_pb2.FAULT_ENGINE_BROKEN, "it crashed", EngineUnusable, "fault "),
        (hub_pb2.FAULT_ENGINE_BROKEN, REMOVED, Unavailable, "was removed from its workers"),
    ],
)
async def test_workers_fault_becomes_the_clients_error(
    harness: GatewayHarness,
    fault: hub_pb2.Fault.ValueType,
    detail: str,
    error: type[SynergaiError],
    text: str,
) -> None:
    worker = harness.add_worker()
    request, assignment = harness.started(worker)
    harness.fail(worker, assignment, fault, detail)
    with pytest.raises(error, match=text):
        await request.result


async def test_request_whose_engine_is_removed_from_its_worker_may_be_sent_again(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    request = harness.begin_request()
    worker.being_removed.add(ENGINE.name)
    while not request.result.done():
        (assignment,) = harness.assignments(worker)
        harness.fail(worker, assignment, hub_pb2.FAULT_ENGINE_BROKEN, "it was removed")
        await turns()
    with pytest.raises(Unavailable):
        await request.result


async def test_worker_is_not_free_when_a_request_ends_that_ran_beside_a_job(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    _, assignment = await harness.submitted(worker)
    concurrent = replace(assignment, id=AssignmentId(assignment.id + 1), count=1, concurrent=True)
    worker.in_flight[concurrent.id] = AssignmentProgress(concurrent, harness.clock.now())
    before = worker.free_since
    harness.complete(worker, concurrent, done=1)
    assert worker.free_since == before
    harness.complete(worker, assignment, done=assignment.count)
    assert worker.free_since > before


async def test_request_of_a_lost_worker_is_run_on_another(harness: GatewayHarness) -> None:
    first = harness.add_worker("first")
    request = harness.begin_request()
    harness.dispatcher.remove_worker(first)
    second = harness.add_worker("second")
    (assignment,) = harness.assignments(second)
    harness.complete(second, assignment, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE


async def test_event_of_a_replaced_worker_is_dropped(harness: GatewayHarness) -> None:
    replaced = harness.add_worker("w1")
    harness.dispatcher.remove_worker(replaced)
    current = harness.add_worker("w1")
    harness.dispatcher.post(events.WorkerDraining(replaced.id), source=replaced)
    harness.begin_request()
    assert len(harness.assignments(current)) == 1
    harness.dispatcher.post(events.WorkerDraining(current.id), source=current)
    harness.begin_request()
    assert harness.assignments(current) == []


async def test_stopping_gateway_refuses_requests_and_jobs(harness: GatewayHarness) -> None:
    harness.add_worker()
    harness.admission.close()
    with pytest.raises(Unavailable):
        harness.begin_request()
    with pytest.raises(Unavailable):
        await harness.jobs.submit(UNRESTRICTED, SPEC)


async def test_unprofiled_engines_are_announced_alike_at_joining_and_later(
    harness: GatewayHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = make_worker()
    new, later = EngineName("new"), EngineName("later")
    worker.engines[new] = replace(ENGINE, name=new)
    harness.dispatcher.add_worker(worker)
    assert harness.dispatcher.core.is_unprofiled(worker.id, new)
    assert not harness.dispatcher.core.is_unprofiled(worker.id, ENGINE.name)

    worker.engines[later] = replace(ENGINE, name=later)
    harness.dispatcher.post(events.EnginesChanged(worker.id, worker.usable_engines), source=worker)
    harness.dispatcher.log_unprofiled(worker, [later])
    harness.dispatcher.log_unprofiled(worker, [ENGINE.name])
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", f"no profile on class test for {name}: measuring the first queries")
        for name in (new, later)
    ]


# --- reports ----------------------------------------------------------------------------------


async def test_report_on_another_workers_assignment_is_ignored(
    harness: GatewayHarness,
) -> None:
    worker, other_worker = harness.add_worker("w1"), harness.add_worker("w2")
    request = harness.begin_request()
    (assignment,) = harness.assignments(worker) or harness.assignments(other_worker)
    owner, other = worker, other_worker
    if not owner.in_flight:
        owner, other = other, owner
    harness.complete(other, assignment, done=1, responses=[b""])
    assert not request.result.done()
    assert harness.metric("stale_reports_total") == 1
    harness.complete(owner, assignment, done=1, responses=[RESPONSE])
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
        {"done": 1, "responses": [RESPONSE], "compute_s": float("nan")},
        {"done": 1, "responses": [RESPONSE], "compute_s": 1e300},
    ],
)
async def test_impossible_report_is_a_violation_and_the_request_is_run_again(
    harness: GatewayHarness, progress: ProgressFields
) -> None:
    worker = harness.add_worker()
    request, assignment = harness.started(worker)
    with pytest.raises(ProtocolViolation):
        harness.complete(worker, assignment, **progress)
    (again,) = harness.assignments(worker)
    assert again.id > assignment.id
    harness.complete(worker, again, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE


# --- jobs -------------------------------------------------------------------------------------


async def test_progress_counts_only_once_the_journal_has_recorded_it(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    status, assignment = await harness.submitted(worker)
    harness.progress(worker, assignment, done=4, labelled=4, correct=2)
    assert (await harness.jobs.get(UNRESTRICTED, status.id)).queries_done == 0
    await harness.flush_journal()
    now = await harness.jobs.get(UNRESTRICTED, status.id)
    assert (now.state, now.queries_done, now.correct) == (JobState.RUNNING, 4, 2)


async def test_worker_that_leaves_right_after_a_report_keeps_what_it_reported(
    harness: GatewayHarness,
) -> None:
    first = harness.add_worker("first")
    _, assignment = await harness.submitted(first)
    harness.progress(first, assignment, done=4)
    harness.dispatcher.remove_worker(first)
    second = harness.add_worker("second")
    await harness.flush_journal()
    (rest,) = harness.assignments(second)
    assert (rest.first, rest.count) == (4, 6)


async def test_job_that_yielded_to_a_request_continues_before_its_progress_is_recorded(
    harness: GatewayHarness,
) -> None:
    worker = harness.add_worker()
    status, assignment = await harness.submitted(worker)
    harness.begin_request()
    orders = harness.orders(worker)
    assert StopAssignment(assignment.id) in orders
    harness.stop(worker, assignment, done=4)
    (rest,) = harness.assignments(worker)
    assert (rest.job_id, rest.first, rest.count) == (status.id, 4, 6)
    assert (await harness.jobs.get(UNRESTRICTED, status.id)).queries_done == 0
    await harness.flush_journal()
    assert (await harness.jobs.get(UNRESTRICTED, status.id)).queries_done == 4


async def test_job_ends_when_all_its_queries_are_recorded(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    status, assignment = await harness.submitted(worker)
    harness.complete(worker, assignment, done=10, labelled=10, correct=9)
    statuses = [s async for s in harness.jobs.watch(UNRESTRICTED, status.id)]
    last = statuses[-1]
    assert (last.state, last.queries_done, last.correct) == (JobState.SUCCEEDED, 10, 9)
    assert last.estimated_s == pytest.approx(0.1, rel=0.01)
    assert await harness.jobs.get(UNRESTRICTED, status.id) == last
    assert harness.metric("jobs_total", engine="echo", outcome="ok") == 1


async def test_reports_on_a_cancelled_job_are_ignored(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    status, assignment = await harness.submitted(worker)
    cancelled = await harness.jobs.cancel(UNRESTRICTED, status.id)
    assert cancelled.state is JobState.CANCELLED
    assert harness.orders(worker) == [StopAssignment(assignment.id, abort=True)]
    harness.complete(worker, assignment, done=10)
    await harness.flush_journal()
    assert (await harness.jobs.get(UNRESTRICTED, status.id)).queries_done == 0


async def test_closed_dispatcher_dispatches_nothing(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    harness.dispatcher.close()
    request = harness.begin_request()
    assert harness.orders(worker) == []
    assert not request.result.done()


# --- workers without progress -----------------------------------------------------------------


async def test_request_on_a_silent_worker_is_answered_by_another_and_its_late_answer_ignored(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [harness.add_worker("one"), harness.add_worker("two")]
    request = harness.begin_request()
    [silent] = [worker for worker in workers if worker.in_flight]
    [other] = [worker for worker in workers if worker is not silent]
    (first,) = harness.assignments(silent)
    later = harness.clock.now() + 1000.0
    monkeypatch.setattr(type(harness.clock), "now", lambda _: later)
    harness.dispatcher.post(events.ProgressChecked(), after_pending=True)
    assert harness.dispatcher.core.ejected(silent.id)
    assert harness.dispatcher.ejections == 1
    (again,) = harness.assignments(other)
    harness.complete(silent, first, done=1, responses=[b"late"])
    assert harness.metric("stale_reports_total") == 1
    harness.complete(other, again, done=1, responses=[RESPONSE])
    assert await request.result == RESPONSE
