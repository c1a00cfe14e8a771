"""Submitted jobs whose engine runs in stages, with workers that the tests answer for."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gateway.entry.access.caller import UNRESTRICTED
from gateway.fleet.stages import tensor_bytes
from gateway.fleet.worker import (
    ConnectedWorker,
    DropTensors,
    RunAssignment,
    SendInputs,
    StopAssignment,
)
from gateway.jobs import staged_feed, staged_job
from gateway.jobs.staged_feed import FIRST_QUERIES, LEAST_QUERIES, MOST_QUERIES, StagedFeed
from gateway.journal.journal import Journal
from synergai.core.pipeline import HeldTensors
from synergai.core.scheduling.events import Assignment
from synergai.domain import Engine, EngineName
from synergai.errors import EngineUnloaded, EngineUnusable, InvalidInput, JobNotFound
from synergai.jobs import JobSpec, JobState, JobStatus
from synergai.oip import inference_pb2 as oip
from synergai.v1 import hub_pb2
from synergai.wire.agent_messages import ProtocolViolation
from synergai.wire.job_inputs import split_input
from synergai.wire.limits import MAX_HELD_BYTES
from synergai.wire.request_codec import parse_header
from synergai.wire.validation import CORRECT, DROP, EXIT, LABEL, SAMPLE
from tests.engines import new_stage, new_whole, with_exit
from tests.unit.gateway.conftest import GatewayHarness, make_worker
from tests.waiting import turns

NET = EngineName("net")
DATA = np.ones(4, np.float32).tobytes()


HEAD, TAIL = new_stage(0, 4, samples=5), new_stage(4, 9)


def response(tensor: str) -> bytes:
    output = oip.ModelInferResponse.InferOutputTensor(name=tensor, datatype="FP32", shape=[1, 4])
    message = oip.ModelInferResponse(outputs=[output], raw_output_contents=[DATA])
    return message.SerializeToString()


class Stages:
    """A gateway with a worker for each stage."""

    def __init__(self, journal: Journal, head: Engine = HEAD, tail: Engine = TAIL) -> None:
        self.gateway = GatewayHarness(journal)
        self.head, self.tail = self.add("head", head), self.add("tail", tail)
        self.stopped: Counter[int] = Counter()

    def add(self, name: str, engine: Engine) -> ConnectedWorker:
        worker = make_worker(name)
        worker.engines = {engine.name: engine}
        self.gateway.dispatcher.add_worker(worker)
        self.gateway.catalogue.update(worker.id, engine)
        return worker

    async def submit(self, queries: int) -> JobStatus:
        return await self.gateway.jobs.submit(UNRESTRICTED, JobSpec(engine=NET, queries=queries))

    async def next(self, worker: ConnectedWorker) -> tuple[Assignment, list[oip.ModelInferRequest]]:
        await turns()
        await self.gateway.flush_journal()
        orders = [o for o in self.gateway.orders(worker) if not isinstance(o, StopAssignment)]
        [run] = [order for order in orders if isinstance(order, RunAssignment)]
        inputs = [each for o in orders if isinstance(o, SendInputs) for each in o.inputs]
        assert run.inputs_follow
        requests = [split_input(each).request for each in inputs]
        return run.assignment, [parse_header(each or b"").message for each in requests]

    def answer(
        self, worker: ConnectedWorker, assignment: Assignment, tensor: str, data: bytes = b""
    ) -> None:
        responses = [data or response(tensor)] * assignment.count
        self.gateway.complete(worker, assignment, responses, done=assignment.count)

    def hold(
        self, assignment: Assignment, answer: bytes, token: str = "token", size: int = 16
    ) -> None:
        """Answer a query with a tensor that the worker of the first stage holds."""
        progress = hub_pb2.Progress(assignment_id=assignment.id, done=1)
        progress.held.add(query=0, token=token, size=size)
        ended = hub_pb2.Ended(progress=progress, outcome=hub_pb2.OUTCOME_COMPLETED)
        self.gateway.intake.apply_ended(self.head, ended, [answer])

    async def begin(self, queries: int) -> tuple[JobStatus, Assignment]:
        """Submit a job; return what the first stage gets."""
        job = await self.submit(queries)
        assignment, _ = await self.next(self.head)
        return job, assignment

    async def begin_behind_head(self, queries: int) -> tuple[JobStatus, Assignment]:
        """Submit a job that the first stage answers; return what the last one gets."""
        job, assignment = await self.begin(queries)
        self.answer(self.head, assignment, "t4")
        assignment, _ = await self.next(self.tail)
        return job, assignment

    def lose(self, worker: ConnectedWorker, assignment: Assignment, first: int = 0) -> None:
        """Report that the tensors of the queries from `first` on are gone, others answered."""
        progress = hub_pb2.Progress(assignment_id=assignment.id, done=assignment.count)
        for query in range(first, assignment.count):
            progress.failures.add(query=query, detail="gone", lost=True)
        ended = hub_pb2.Ended(progress=progress, outcome=hub_pb2.OUTCOME_COMPLETED)
        responses = [response("t9")] * first + [b""] * (assignment.count - first)
        self.gateway.intake.apply_ended(worker, ended, responses)

    async def status(self, job: JobStatus) -> JobStatus:
        await turns()
        await self.gateway.flush_journal()
        await self.gateway.flush_journal()
        return await self.gateway.jobs.get(UNRESTRICTED, job.id)


@asynccontextmanager
async def running(folder: Path, head: Engine = HEAD, tail: Engine = TAIL) -> AsyncIterator[Stages]:
    journal = Journal(folder)
    stages = Stages(journal, head, tail)
    yield stages
    stages.gateway.dispatcher.close()
    await stages.gateway.jobs.close()
    await journal.close()


@pytest.fixture
async def stages(tmp_path: Path) -> AsyncIterator[Stages]:
    async with running(tmp_path) as stages:
        yield stages


async def test_each_stage_gets_the_outputs_of_the_one_before(stages: Stages) -> None:
    job = await stages.submit(2)
    assignment, requests = await stages.next(stages.head)
    assert [each.parameters[SAMPLE].int64_param for each in requests] == [0, 1]
    stages.answer(stages.head, assignment, "t4")
    assignment, requests = await stages.next(stages.tail)
    assert [each.inputs[0].name for each in requests] == ["t4", "t4"]
    assert {each.model_name for each in requests} == {"net"}
    stages.answer(stages.tail, assignment, "t9")
    status = await stages.status(job)
    assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 2)
    assert [(each.worker_id, each.first, each.count) for each in status.executions] == [
        ("head tail", 0, 2)
    ]


async def run_all(stages: Stages, worker: ConnectedWorker, tensor: str) -> int:
    """Answer all that a worker gets; return the number of queries."""
    count = 0
    while True:
        await turns()
        await stages.gateway.flush_journal()
        orders = stages.gateway.orders(worker)
        runs = [order.assignment for order in orders if isinstance(order, RunAssignment)]
        if not runs:
            return count
        for each in runs:
            count += each.count
            stages.answer(worker, each, tensor)


async def test_few_queries_are_on_their_way(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_feed, "WORTH_S", 1e6)
    await stages.submit(10 * MOST_QUERIES)
    [first] = stages.gateway.assignments(stages.head)
    assert first.count <= FIRST_QUERIES
    assert await run_all(stages, stages.head, "t4") == 0
    stages.answer(stages.head, first, "t4")
    assert await run_all(stages, stages.head, "t4") == MOST_QUERIES - first.count


async def test_room_that_is_taken_for_more_queries_than_are_left_is_given_back(
    stages: Stages,
) -> None:
    await stages.begin(1)
    assert FIRST_QUERIES > 1
    room = stages.gateway.jobs._staged_jobs.room
    assert room.used_bytes == max(tensor_bytes(stage.outputs) for stage in (HEAD, TAIL))


async def test_queries_whose_inputs_are_not_read_with_others_are_read_next(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = StagedFeed._read

    async def read_one(feed: StagedFeed, first: int, _queries: int) -> list[bytes]:
        return await read(feed, first, 1)

    monkeypatch.setattr(StagedFeed, "_read", read_one)
    job = await stages.submit(3)
    for _ in range(3):
        await run_all(stages, stages.head, "t4")
        await run_all(stages, stages.tail, "t9")
    assert (await stages.status(job)).state is JobState.SUCCEEDED


async def test_slow_queries_are_fewer_on_their_way(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_feed, "WORTH_S", 0.0)
    await stages.submit(10 * MOST_QUERIES)
    begun = await run_all(stages, stages.head, "t4")
    assert begun <= 2 * LEAST_QUERIES, "before there is a result"
    for _ in range(5):
        ended = await run_all(stages, stages.tail, "t9")
        begun += await run_all(stages, stages.head, "t4") - ended
    assert begun <= 2 * LEAST_QUERIES


async def test_large_tensors_let_fewer_queries_on_their_way(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_feed, "MOST_BYTES", 1000)
    await stages.submit(10 * MOST_QUERIES)
    assert 5 <= await run_all(stages, stages.head, "t4") <= 50
    room = stages.gateway.jobs._staged_jobs.room
    assert 0 < room.used_bytes <= 1000


async def test_malformed_response_of_a_stage_fails_the_job(stages: Stages) -> None:
    job, assignment = await stages.begin(2)
    output = oip.ModelInferResponse.InferOutputTensor(name="t4", datatype="FP32", shape=[1, 4])
    without_tensor = oip.ModelInferResponse(outputs=[output]).SerializeToString()
    stages.answer(stages.head, assignment, "t4", without_tensor)
    status = await stages.status(job)
    assert status.state is JobState.FAILED
    assert status.reason == "a worker's response of stage 'net.s0-4' is malformed"
    assert not list(stages.gateway.dispatcher._handlers)


async def test_stage_that_cannot_run_fails_the_job_with_its_reason(stages: Stages) -> None:
    job, assignment = await stages.begin(2)
    stages.gateway.fail(stages.head, assignment, hub_pb2.FAULT_BAD_INPUT, "no such tensor")
    status = await stages.status(job)
    assert (status.state, status.reason) == (JobState.FAILED, "no such tensor")


async def test_job_waits_while_a_stage_is_missing_and_then_continues(stages: Stages) -> None:
    job, assignment = await stages.begin(3)
    tail = stages.tail
    stages.gateway.catalogue.withdraw(tail.id, TAIL.name)
    assert (await stages.status(job)).state is JobState.RUNNING
    assert stages.gateway.jobs._staged_jobs.room.used_bytes == 0
    stages.answer(stages.head, assignment, "t4")  # too late: it runs again
    stages.gateway.catalogue.update(tail.id, TAIL)
    async with asyncio.timeout(5):
        while not stages.gateway.dispatcher.busy:
            await stages.status(job)
    assignment, requests = await stages.next(stages.head)
    assert len(requests) == 3
    stages.answer(stages.head, assignment, "t4")
    assignment, _ = await stages.next(stages.tail)
    stages.answer(stages.tail, assignment, "t9")
    status = await stages.status(job)
    assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 3)


async def test_query_goes_on_in_no_stage_of_another_model(stages: Stages) -> None:
    job, assignment = await stages.begin(2)
    stages.gateway.catalogue.withdraw(stages.tail.id, TAIL.name)
    other = stages.add("other", replace(TAIL, stage_of="b" * 64))
    stages.answer(stages.head, assignment, "t4")
    assert (await stages.status(job)).state is JobState.RUNNING
    assert not stages.gateway.orders(other)


async def test_stage_of_a_job_is_not_cancelled(stages: Stages) -> None:
    job = await stages.submit(1)
    await turns()
    jobs = stages.gateway.jobs
    for number in (1, 2):
        with pytest.raises(InvalidInput, match=f"is a stage of job {job.id}: cancel that job"):
            await jobs.cancel(UNRESTRICTED, f"{job.id}.{number}")
    for name in ("0", "3", "x"):
        with pytest.raises(JobNotFound, match=f"{job.id}.{name}"):
            await jobs.cancel(UNRESTRICTED, f"{job.id}.{name}")
    assert not (await stages.status(job)).state.ended


async def test_job_over_an_unloaded_engine_is_refused(stages: Stages) -> None:
    stages.gateway.catalogue.unload(NET)
    with pytest.raises(EngineUnloaded):
        await stages.submit(1)


async def test_job_for_a_variant_needs_the_whole_engine(stages: Stages) -> None:
    spec = JobSpec(engine=NET, queries=1, variant="int8")
    with pytest.raises(EngineUnusable, match="runs in 2 stages"):
        await stages.gateway.jobs.submit(UNRESTRICTED, spec)


async def test_outputs_that_a_worker_holds_are_pulled_and_then_dropped(stages: Stages) -> None:
    stages.head.peer_address = "head:7000"
    job, assignment = await stages.begin(1)
    held_response = oip.ModelInferResponse.FromString(response("t4"))
    held_response.ClearField("raw_output_contents")
    stages.hold(assignment, held_response.SerializeToString())
    await turns()
    orders = stages.gateway.orders(stages.tail)
    [run] = [order for order in orders if isinstance(order, RunAssignment)]
    [sent] = [order for order in orders if isinstance(order, SendInputs)]
    assert sent.pulls == [(0, HeldTensors(stages.head.id, "token", 16, "head:7000"))]
    assert run.assignment.count == 1
    assert not [o for o in stages.gateway.orders(stages.head) if isinstance(o, DropTensors)]
    stages.answer(stages.tail, run.assignment, "t9")
    assert DropTensors("token") in stages.gateway.orders(stages.head)
    assert (await stages.status(job)).state is JobState.SUCCEEDED


async def test_outputs_that_are_held_for_a_cancelled_job_are_dropped(stages: Stages) -> None:
    stages.head.peer_address = "head:7000"
    job, assignment = await stages.begin(1)
    await stages.gateway.jobs.cancel(UNRESTRICTED, job.id)
    stages.hold(assignment, response("t4"))
    assert DropTensors("token") in stages.gateway.orders(stages.head)


@pytest.mark.parametrize(("token", "size"), [("", 16), ("token", MAX_HELD_BYTES + 1)])
async def test_worker_holds_no_outputs_beyond_the_limits(
    stages: Stages, token: str, size: int
) -> None:
    stages.head.peer_address = "head:7000"
    _, assignment = await stages.begin(1)
    with pytest.raises(ProtocolViolation, match="cannot hold the outputs of query 0"):
        stages.hold(assignment, response("t4"), token, size)


async def test_query_whose_tensors_are_lost_begins_again(stages: Stages) -> None:
    job, assignment = await stages.begin_behind_head(1)
    stages.lose(stages.tail, assignment)
    for worker, tensor in ((stages.head, "t4"), (stages.tail, "t9")):
        assignment, _ = await stages.next(worker)
        stages.answer(worker, assignment, tensor)
    status = await stages.status(job)
    assert (status.state, status.queries_done, status.failures) == (JobState.SUCCEEDED, 1, 0)


async def test_query_that_begins_again_while_others_are_read_takes_no_room_of_theirs(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, readable = StagedFeed._read, asyncio.Event()

    async def read_late(feed: StagedFeed, first: int, queries: int) -> list[bytes]:
        if first >= FIRST_QUERIES:
            await readable.wait()
        return await read(feed, first, queries)

    monkeypatch.setattr(StagedFeed, "_read", read_late)
    job, assignment = await stages.begin_behind_head(2 * FIRST_QUERIES)
    stages.lose(stages.tail, assignment)
    await turns()
    readable.set()
    for _ in range(3):
        await run_all(stages, stages.head, "t4")
        await run_all(stages, stages.tail, "t9")
    assert (await stages.status(job)).state is JobState.SUCCEEDED


async def test_answers_are_recorded_before_a_query_is_lost_once_too_often(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staged_job, "MOST_LOSSES", 0)
    job, assignment = await stages.begin_behind_head(2)
    stages.lose(stages.tail, assignment, first=1)
    status = await stages.status(job)
    assert (status.state, status.queries_done) == (JobState.FAILED, 1)
    assert not caplog.records


async def test_queries_that_a_stage_has_answered_end_in_its_chain_and_others_move(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, first = await stages.begin(2 * FIRST_QUERIES)
    assert first.count == FIRST_QUERIES
    progress = hub_pb2.Progress(assignment_id=first.id, done=1)
    stages.gateway.intake.apply_progress(stages.head, progress, [response("t4")])
    for worker, other in (
        (stages.head, new_stage(0, 2, samples=5)),
        (stages.tail, new_stage(2, 9)),
    ):
        worker.engines[other.name] = other
        stages.gateway.catalogue.update(worker.id, other)
        stages.gateway.dispatcher.post(worker.engines_changed(), source=worker)
    routes = stages.gateway.routes
    chosen = [new_stage(0, 2, samples=5), new_stage(2, 9)]
    monkeypatch.setattr(routes, "of_jobs", lambda *_: tuple(chosen))
    routes.on_changed(NET)
    assert (await stages.status(job)).stages == tuple(each.name for each in chosen)
    stopped = hub_pb2.OUTCOME_STOPPED
    stages.gateway.complete(stages.head, first, [response("t4")], outcome=stopped, done=2)
    counts = {"net.s0-2": 0, "net.s4-9": 0, "net.s2-9": 0}
    for worker, tensor in ((stages.head, "t2"), (stages.tail, "t9")) * 4:
        for assignment in stages.gateway.assignments(worker):
            counts[assignment.engine] += assignment.count
            stages.answer(worker, assignment, tensor)
        await turns()
        await stages.gateway.flush_journal()
    moved = 2 * FIRST_QUERIES - 1
    assert counts == {"net.s0-2": moved, "net.s4-9": 1, "net.s2-9": moved}
    status = await stages.status(job)
    assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 2 * FIRST_QUERIES)


async def test_each_stage_leaves_those_behind_it_the_time_for_a_query(tmp_path: Path) -> None:
    slow = replace(TAIL, query_s=2.0)
    async with running(tmp_path, HEAD, slow) as stages:
        await stages.gateway.jobs.submit(UNRESTRICTED, JobSpec(engine=NET, queries=1, qos=10.0))
        await stages.next(stages.head)
        jobs = stages.gateway.dispatcher.core._jobs.by_id.values()
        deadlines = {each.job.engine: each.job.deadline for each in jobs}
        assert deadlines[slow.name] - deadlines[HEAD.name] == pytest.approx(2.0)


# --- early exits ----------------------------------------------------------------------------

EARLY = with_exit(HEAD, 0.5, query_s=0.1)
WHOLE = new_whole(samples=5, query_s=1.0)


def left(*, correct: bool = True) -> bytes:
    """Return the response to a query that leaves the engine behind the first stage."""
    message = oip.ModelInferResponse.FromString(response("t9"))
    message.parameters[EXIT].string_param = "t4"
    message.parameters[LABEL].int64_param = 1
    message.parameters[CORRECT].bool_param = correct
    return message.SerializeToString()


async def test_queries_that_leave_are_recorded_in_their_turn(tmp_path: Path) -> None:
    async with running(tmp_path, EARLY, TAIL) as stages:
        job, assignment = await stages.begin(4)
        answers = [left(), response("t4"), left(correct=False), left()]
        stages.gateway.complete(stages.head, assignment, answers, done=4)
        assert (await stages.status(job)).queries_done == 1
        assignment, requests = await stages.next(stages.tail)
        assert [each.inputs[0].name for each in requests] == ["t4"]
        stages.answer(stages.tail, assignment, "t9")
        status = await stages.status(job)
        assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 4)
        assert [(each.worker_id, each.first, each.count) for each in status.executions] == [
            ("head", 0, 1),
            ("head tail", 1, 3),
        ]
        assert (status.labelled, status.correct) == (3, 2)


async def test_query_that_stays_begins_again_where_the_engine_is_whole(tmp_path: Path) -> None:
    async with running(tmp_path, EARLY, WHOLE) as stages:
        job = await stages.submit(2)
        assignment, requests = await stages.next(stages.head)
        assert [each.parameters[EXIT].string_param for each in requests] == [DROP, DROP]
        nothing = oip.ModelInferResponse().SerializeToString()
        stages.gateway.complete(stages.head, assignment, [left(), nothing], done=2)
        assignment, [request] = await stages.next(stages.tail)
        assert request.parameters[SAMPLE].int64_param == 1
        assert EXIT not in request.parameters
        stages.answer(stages.tail, assignment, "t9")
        status = await stages.status(job)
        assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 2)


async def test_query_that_moves_to_another_route_is_prepared_for_it(tmp_path: Path) -> None:
    async with running(tmp_path, EARLY, replace(TAIL, query_s=5.0)) as stages:
        job = await stages.submit(1)
        first, [request] = await stages.next(stages.head)
        assert EXIT not in request.parameters
        whole = stages.add("whole", WHOLE)
        assert (await stages.status(job)).stages == (HEAD.name, NET)
        stages.gateway.stop(stages.head, first)
        assignment, [request] = await stages.next(stages.head)
        assert request.parameters[EXIT].string_param == DROP
        nothing = oip.ModelInferResponse().SerializeToString()
        stages.gateway.complete(stages.head, assignment, [nothing], done=1)
        assignment, [request] = await stages.next(whole)
        assert request.parameters[SAMPLE].int64_param == 0
        stages.answer(whole, assignment, "t9")
        assert (await stages.status(job)).state is JobState.SUCCEEDED


async def test_job_with_a_floor_leaves_only_where_it_is_held(tmp_path: Path) -> None:
    async with running(tmp_path, EARLY, WHOLE) as stages:
        route = stages.gateway.routes.route
        found = route(JobSpec(engine=NET, queries=1, min_accuracy=0.95))
        assert found is not None
        assert [each.name for each in found.engines] == [HEAD.name, NET]
        assert route(JobSpec(engine=NET, queries=1, min_accuracy=0.955)) is None
        assert route(JobSpec(engine=NET, queries=1, variant="int8")) is None
