"""The queries of a submitted job on their way through the stages of its engine.

Each stage is a job of its own in the scheduling core. A query is ready in a stage once the stage
before has answered it, so that no worker waits for another one. Few queries are on their way at a
time. Their tensors are in memory only: queries that are not recorded run again after a restart.
Workers with a peer port hold their outputs, which the worker of the next stage pulls from them. A
query that leaves its engine at an early exit is recorded in its turn, like one behind all stages.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from msgspec import Struct
from msgspec.structs import replace

from gateway.dispatch.job_handler import JobHandler
from gateway.fleet.stages import tensor_bytes
from gateway.fleet.ways import Way
from gateway.fleet.worker import SendInputs
from gateway.jobs.input_feed import PORTION_BYTES, read_inputs
from gateway.jobs.suspects import Suspects
from gateway.jobs.tensor_room import TensorRoom
from gateway.journal.job_record import RecordedExecution
from gateway.records.log import DamagedLog
from gateway.records.results import InputResult
from synergai.domain import AssignmentId, Fault, JobId, JobState, WorkerId
from synergai.errors import InternalError, InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.protocol.job_inputs import input_of, sample_input, split_input
from synergai.protocol.request_codec import RequestDecoder
from synergai.protocol.stages import as_inputs, has_left, of_stage, parse_stage_response
from synergai.protocol.validation import CORRECT, EXIT, LABEL, STAY
from synergai.runtime.tasks import TaskBag
from synergai.scheduling.events import QueriesReady
from synergai.scheduling.state.ranges import Ranges
from synergai.versions import engine_of_stage, split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.dispatch.chains import Chains
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.ways import Ways
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker, HeldTensors
    from gateway.records.log import RecordLog
    from synergai.domain import Configuration, Engine, Job, JobSpec
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment

MOST_QUERIES: Final = 128
"""Queries of a job that are on their way."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Their largest tensors, unless a single query has more."""
FIRST_QUERIES: Final = 4
"""Queries of a run that are on their way before one has reached the last stage, which shows how
large its tensors are."""
WORTH_S: Final = 0.5
"""Time for which queries on their way last: so long, a job that moves to other stages is still in
the former ones."""
LEAST_QUERIES: Final = 4
"""Queries on their way for each worker, however long they take."""
MOST_REPEATS: Final = 10
"""Times that a query begins again after the worker that held its tensors was lost."""
_REFILL: Final = 0.25
"""Share of the queries on their way that is read together."""
_OWN_IDS: Final = 39
"""Bit of the ids of recorded ranges that are no assignments; the epoch is above."""

_log = logging.getLogger(__name__)


class StagedRuns:
    """Starts the runs of all jobs in stages."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ways: Ways,
        chains: Chains,
        clock: Clock,
        epoch: int,
        memory_bytes: int,
    ) -> None:
        self.dispatcher = dispatcher
        self.clock = clock
        self.ways = ways
        self.room = TensorRoom(memory_bytes)
        self._chains = chains
        self._ids = count((epoch << (_OWN_IDS + 1)) | (1 << _OWN_IDS))

    def way(self, spec: JobSpec) -> Way | None:
        """Return the way of a job's queries now; None if its engine runs whole, or not at all.

        One with exits follows from the fleet alone, so that a job does not change it with each
        query.
        """
        if spec.variant:  # which stages do not have
            return None
        engine, floor = spec.engine_version, spec.min_accuracy
        if not self.ways.has_exits(engine):
            chain = () if floor else self._chains.of_jobs(engine)
            return Way(chain) if chain else None
        try:
            way = self.ways.find(engine, floor, _inspected_s, _calibrated)
        except InvalidInput:
            return None
        # Nothing can be asked of the exit of the first stage by an input that its worker reads.
        is_free = way is None or not spec.upload_id or way.asks(0) != STAY
        return way if is_free else None

    def reason(self, spec: JobSpec) -> str:
        """Return why a job runs in its stages; empty if there was no choice."""
        return self._chains.reason(spec.engine_version)

    def new_id(self) -> AssignmentId:
        """Return the id of a range that is recorded."""
        return AssignmentId(next(self._ids))


@dataclass(slots=True, eq=False)
class _Query:
    """A query on its way.

    Attributes:
        client: the request of the client, without its tensors.
        inputs: serialised ``Input`` of the client, if the query may begin again with it.
        data: serialised ``Input`` of the stage that it waits for.
        pull: its tensors, if a worker holds them; `data` lacks them.
        room_bytes: room that it has.
        result: its outcome, once it has left the stages.
        correct: whether a sample was answered correctly; None without a label.
    """

    index: int
    name: str
    client: ModelInferRequest
    inputs: bytes
    data: bytes
    room_bytes: int
    repeats: int = 0
    pull: HeldTensors | None = None
    result: InputResult | None = None
    correct: bool | None = None


class RecordedRange(Struct, frozen=True):
    """Queries that are recorded under one id."""

    id: AssignmentId
    count: int


class _Stage(JobHandler):
    """One stage of a line; the dispatcher's handler of its job."""

    inputs_follow = True

    def __init__(
        self, run: StagedRun, line: Sequence[_Stage], place: int, engine: Engine, job: Job
    ) -> None:
        self.line = line
        self.place = place
        self.way = run.way
        self.holds_outputs = place + 1 < len(self.way.engines)
        self.engine = engine
        self.job = job
        self.workers: dict[WorkerId, None] = {}
        self.ended = False
        self._run = run
        self.added = 0
        self._queries: dict[int, _Query] = {}
        self._suspects = Suspects(run.fail)

    @property
    def is_empty(self) -> bool:
        """Whether no query waits for it or runs."""
        return not self._queries

    def add(self, queries: Sequence[_Query]) -> None:
        """Let queries run, behind those that were added before."""
        for number, query in enumerate(queries, self.added):
            self._queries[number] = query
        self.added += len(queries)
        self._run.dispatcher.post(QueriesReady(self.job.id, self.added))

    def withdraw(self) -> list[_Query]:
        """Withdraw the stage; return the queries that it has not answered."""
        self._run.dispatcher.suspend(self.job.id)
        queries = list(self._queries.values())
        self._queries.clear()
        return queries

    def requests(self, _first: int, _count: int) -> Sequence[bytes]:
        """Return no requests: the inputs follow."""
        return ()

    def retries_alone(self, query: int) -> bool:
        """Return whether the query runs alone next, so that the crash does not count."""
        return self._suspects.retries_alone(query)

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Send the inputs in portions."""
        self._run.on_dispatched(assignment, now)
        inputs: list[bytes] = []
        suspects: list[int] = []
        pulls: list[tuple[int, HeldTensors]] = []
        size = 0
        for query in range(assignment.count):
            number = assignment.first + query
            data, pull = self._queries[number].data, self._queries[number].pull
            if inputs and size + len(data) > PORTION_BYTES:
                worker.orders.put(SendInputs(assignment.id, inputs, suspects, pulls))
                inputs, suspects, pulls, size = [], [], [], 0
            inputs.append(data)
            size += len(data)
            if pull is not None:
                pulls.append((query, pull))
            if number in self._suspects:
                suspects.append(query)
        worker.orders.put(SendInputs(assignment.id, inputs, suspects, pulls))

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        responses: Sequence[Buffer],
        _now: float,
    ) -> None:
        """Pass the answered queries on."""
        self.workers.setdefault(worker.id)
        answers, lost = [], []
        for place, response in enumerate(responses, progress.done - len(responses)):
            number = progress.assignment.first + place
            self._suspects.forget(number)
            error = progress.failed.get(place, "")
            if not error:
                self._suspects.answered()
            query = self._queries.pop(number)
            self._run.drop(query)
            if place in progress.lost:
                lost.append(query)
            else:
                query.pull = progress.held.get(place)
                answers.append((query, response, error))
        self._run.answered(self, answers, progress.assignment.configuration)
        for query in lost:  # last, as this may end the run
            self._run.repeat(query)

    def on_ended(self, state: JobState, reason: str, fault: Fault, _now: float) -> None:
        """End the run with a stage that cannot complete."""
        self.ended = True
        if state is not JobState.SUCCEEDED:
            # Later: the scheduler's commands are being executed.
            asyncio.get_running_loop().call_soon(self._run.end, state, reason, fault)


class StagedRun:
    """One run of a job through stages, from its start until it ends, is paused or changes chains.

    Args:
        job: the job as the scheduling core would see it if its engine was whole.
        done: ranges that are recorded.
        log: its inputs; None for samples.
        numbers: of which each stage takes one for the id of its job.
        record: records a range with the results that are new, which hold so many bytes, and then
            calls `recorded`.
        on_dispatched: called with each assignment of a stage.
        on_ended: called with the end of the job, in which the run has to be closed.
    """

    def __init__(
        self,
        runs: StagedRuns,
        way: Way,
        job: Job,
        done: Sequence[tuple[int, int]],
        log: RecordLog | None,
        numbers: Iterator[int],
        *,
        record: Callable[[RecordedRange, RecordedExecution, Sequence[InputResult], int], None],
        on_dispatched: Callable[[Assignment, float], None],
        on_ended: Callable[[JobState, str, Fault, float], None],
    ) -> None:
        self.way = way
        self.on_dispatched = on_dispatched
        self._record_results = record
        self._on_ended = on_ended
        self._clock = runs.clock
        self.dispatcher = runs.dispatcher
        self._runs = runs
        self._job = job
        self._log = log
        self._pending = Ranges.complement(done, job.queries)
        self._left = self._pending.total
        self._numbers = numbers
        self._stages = self._new_line()
        self._former: list[list[_Stage]] = []
        self._order: deque[_Query] = deque()
        self._under_way = 0
        self._room_bytes = 0
        self._sized = False  # until a query has been in all stages
        self._largest_bytes = max(tensor_bytes(stage.outputs) for stage in way.engines)
        self._interval_s = 0.0  # between results
        self._moved = asyncio.Event()
        self._decoder = RequestDecoder()
        name, version = split_version(way.whole.name)
        # Fields that are appended to a message replace those before them.
        self._name = ModelInferResponse(model_name=name, model_version=version).SerializeToString()
        self._recording: RecordedExecution | None = None
        self._recording_id = AssignmentId(0)
        self._recorded_at = 0.0
        self._tasks = TaskBag()
        self._closed = False

    def start(self) -> None:
        """Begin."""
        self._recorded_at = self._clock.now()
        if not self._left:
            self.end(JobState.SUCCEEDED, "", Fault.UNSPECIFIED)
            return
        self._submit()
        self._tasks.start(self._feed())

    def use(self, way: Way) -> None:
        """Let queries that no stage has answered take another way; the others go on in theirs."""
        self.way = way
        former = self._stages
        self._former.append(former)
        self._stages = self._new_line()
        self._submit()
        self._begin(former[0].withdraw())
        self._end_former()

    @property
    def engines(self) -> Iterator[Engine]:
        """Stages that queries run in, those of former chains included."""
        return (stage.engine for line in (self._stages, *self._former) for stage in line)

    def close(self) -> None:
        """Withdraw all queries that are not recorded."""
        self._closed = True
        self._tasks.cancel()
        for line in (self._stages, *self._former):
            self._withdraw(line)
        self._runs.room.give(self._room_bytes)
        self._room_bytes = 0
        for query in self._order:
            self.drop(query)

    def fail(self, reason: str) -> None:
        """Fail the job."""
        self.end(JobState.FAILED, reason, Fault.UNSPECIFIED)

    def end(self, state: JobState, reason: str, fault: Fault) -> None:
        """End the job, unless the run is closed."""
        if not self._closed:
            self._on_ended(state, reason, fault, self._clock.now())

    def expected_completion(self, now: float) -> float | None:
        """Return when the last stage is expected to complete; None if that is unknown.

        Each one is expected to get the queries that have not left before.
        """
        last, share = now, 1.0
        for place, stage in enumerate(self._stages):
            if not stage.ended:
                at = self.dispatcher.expected_completion(stage.job.id, now)
                if at is None:
                    return None
                last = max(last, now + share * (at - now))
            if self.way.may_leave(place):
                share *= 1 - self._runs.ways.rates.rate(stage.engine)
        return last

    def answered(
        self,
        stage: _Stage,
        answers: Sequence[tuple[_Query, Buffer, str]],
        configuration: Configuration,
    ) -> None:
        """Pass queries on to the stage behind, with outputs as inputs, or record their results."""
        behind = stage.line[stage.place + 1 :]
        passed, left = [], False
        for query, response, error in answers:
            if error and self._log is None:
                self.fail(f"stage {stage.engine.name!r} failed at a sample: {error}")
                return
            try:
                if error or not behind:
                    self._finish(stage, query, response, error)
                    continue
                held = query.pull is not None
                message, contents = parse_stage_response(stage.engine, response, held=held)
                if self._leaves(stage, message):
                    self._finish(stage, query, b"".join((response, self._name)), "")
                    left = True
                    continue
                query.data = self._input_of(stage, query, message, contents)
            except InternalError as malformed:
                self.fail(str(malformed))
                return
            held_bytes = 0 if query.pull is None else query.pull.size
            self._largest_bytes = max(self._largest_bytes, len(query.data) + held_bytes)
            passed.append(query)
        if passed:
            behind[0].add(passed)
        if (left or len(behind) <= 1) and not self._sized:
            self._sized = True
            self._moved.set()
        self._record(stage.line, configuration)
        self._end_former()

    def drop(self, query: _Query) -> None:
        """Let the worker that holds the tensors of a query drop them."""
        if query.pull is not None:
            self.dispatcher.drop(query.pull)
            query.pull = None

    def repeat(self, query: _Query) -> None:
        """Let a query begin again, as the worker with its tensors was lost."""
        query.repeats += 1
        if query.repeats > MOST_REPEATS:
            self.fail(f"the tensors of query {query.index} were lost {query.repeats} times")
        elif not self._closed:
            self._tasks.start(self._read_again(query))

    async def _read_again(self, query: _Query) -> None:
        try:
            [data] = await self._read(query.index, 1)
        except (DamagedLog, OSError, ValueError) as error:
            self._unreadable(error)
            return
        first = self._new_query(query.index, data, query.room_bytes)
        query.data, query.client, query.inputs = first.data, first.client, first.inputs
        self._begin([query])

    def recorded(self, queries: int, room_bytes: int) -> None:
        """Make room for other queries, as so many are recorded; end with the last one."""
        if self._closed:
            return
        self._give(room_bytes)
        self._under_way -= queries
        self._left -= queries
        self._moved.set()
        if not self._left:
            self.end(JobState.SUCCEEDED, "", Fault.UNSPECIFIED)

    def _new_line(self) -> list[_Stage]:
        """Return the stages of the chain, which queries pass in order."""
        line: list[_Stage] = []
        line += (
            _Stage(self, line, place, engine, self._job_of(engine, next(self._numbers)))
            for place, engine in enumerate(self.way.engines)
        )
        return line

    def _submit(self) -> None:
        # The last stage first: of equally urgent jobs, a worker runs the one that came first.
        for stage in reversed(self._stages):
            self.dispatcher.submit(stage.job, stage, ready=0)

    def _withdraw(self, line: Iterable[_Stage]) -> None:
        for stage in line:
            self.dispatcher.suspend(stage.job.id)

    def _end_former(self) -> None:
        """Withdraw former chains that no query is left in."""
        for line in [line for line in self._former if all(stage.is_empty for stage in line)]:
            self._former.remove(line)
            self._withdraw(line)

    def _job_of(self, stage: Engine, number: int) -> Job:
        return replace(
            self._job,
            id=JobId(f"{self._job.id}.{number}"),
            client_id=self._job.id,  # so that it is explained under the id of the job
            engine=stage.name,
            min_accuracy=0.0 if stage.stage_of else self._job.min_accuracy,
            queries=self._left,
            with_tensors=True,
        )

    # --- feeding the first stage ------------------------------------------------------------

    async def _feed(self) -> None:
        try:
            while self._pending.total:
                await self._feed_some()
        except (DamagedLog, OSError) as error:
            self._unreadable(error)

    def _unreadable(self, error: Exception) -> None:
        _log.error("job %s: its inputs cannot be read: %s", self._job.id, error)
        self.fail("its inputs can no longer be read")

    async def _feed_some(self) -> None:
        """Read the next inputs once there is room for them."""
        while True:
            most = self._most_queries()
            free = most - self._under_way
            if not self._under_way or free >= min(most * _REFILL, self._pending.total):
                break
            self._moved.clear()
            await self._moved.wait()
        wanted, size = max(1, free), self._largest_bytes
        await self._runs.room.take(self._job, size)
        self._room_bytes += size
        granted = 1
        while granted < wanted and self._runs.room.try_take(size):
            self._room_bytes += size
            granted += 1
        first, stop = self._pending.take(granted, sys.maxsize) or (0, 0)
        found = await self._read(first, stop - first)
        if first + len(found) < stop:
            self._pending.add(first + len(found), stop)
        self._give((granted - len(found)) * size)
        queries = [self._new_query(first + place, data, size) for place, data in enumerate(found)]
        self._order.extend(queries)
        self._under_way += len(queries)
        self._begin(queries)

    def _begin(self, queries: Sequence[_Query]) -> None:
        """Let queries run in the first stage, some of them perhaps once more."""
        stage = self._stages[0]
        if stage.added + len(queries) > stage.job.queries:
            self.use(self.way)  # its jobs have room for each query once
        self._stages[0].add(queries)

    def _most_queries(self) -> int:
        """Return how many queries may be on their way."""
        if not self._sized:
            return FIRST_QUERIES
        most = max(1, min(MOST_QUERIES, MOST_BYTES // self._largest_bytes))
        if not self._interval_s:
            return most
        workers = sum(max(1, len(stage.workers)) for stage in self._stages)
        worth = math.ceil(WORTH_S / self._interval_s)
        return min(most, max(worth, LEAST_QUERIES * workers))

    async def _read(self, first: int, queries: int) -> list[bytes]:
        if self._log is None:
            return [sample_input(index) for index in range(first, first + queries)]
        return await asyncio.to_thread(read_inputs, self._log, first, queries)

    def _new_query(self, index: int, data: bytes, room_bytes: int) -> _Query:
        """Return a query; its worker reports what is wrong with it."""
        self._largest_bytes = max(self._largest_bytes, len(data))
        name, client = "", ModelInferRequest()
        inputs = data if self.way.begins_again(len(self._stages) - 1) else b""
        try:
            found = split_input(data)
            name = found.name
            if found.request is not None:
                header = self._decoder.decode(found.request)
                client = header.message
                data = self._first_input(data, header)
        except (DecodeError, InvalidInput):
            pass
        return _Query(index, name, client, inputs, data, room_bytes)

    def _first_input(self, data: bytes, header: RequestHeader) -> bytes:
        """Return the input of the first stage for a request of the client."""
        answers, asked = self.way.engines[0].exit is not None, self.way.asks(0)
        is_asked = EXIT in header.message.parameters  # which is not for clients
        if not (asked or is_asked) and (answers or not header.message.outputs):
            return data
        message = ModelInferRequest()
        message.CopyFrom(header.message)
        message.parameters.pop(EXIT, None)
        if asked:
            message.parameters[EXIT].string_param = asked
        if not answers:
            message.ClearField("outputs")  # they are those of the last stage
        return input_of(message, header.raw)

    def _give(self, size: int) -> None:
        self._room_bytes -= size
        self._runs.room.give(size)

    # --- between stages ---------------------------------------------------------------------

    def _leaves(self, stage: _Stage, message: ModelInferResponse) -> bool:
        """Return whether a query has left the engine behind a stage, and learn from it."""
        left = has_left(message)
        if stage.way.may_leave(stage.place):
            self._runs.ways.rates.observe(stage.engine, left=left)
        return left

    def _input_of(
        self,
        stage: _Stage,
        query: _Query,
        message: ModelInferResponse,
        contents: Sequence[Buffer],
    ) -> bytes:
        """Return the input of the stage behind one that has answered."""
        place = stage.place + 1
        behind = stage.line[place]
        is_last = behind is stage.line[-1]
        if LABEL in message.parameters:
            query.client = ModelInferRequest(parameters={LABEL: message.parameters[LABEL]})
        if stage.way.begins_again(place):
            self.drop(query)
            return query.inputs
        outputs = as_inputs(message, contents)
        request = of_stage(
            outputs, query.client, behind.engine, is_last=is_last, asked=stage.way.asks(place)
        )
        if is_last:  # the response is that of the whole engine
            request.message.model_name, _ = split_version(engine_of_stage(behind.engine.name))
        return input_of(request.message, request.raw)

    # --- behind the last stage --------------------------------------------------------------

    def _finish(self, stage: _Stage, query: _Query, response: Buffer, error: str) -> None:
        query.data = b""
        if self._log is None:
            parameters = parse_stage_response(stage.engine, response)[0].parameters
            query.correct = parameters[CORRECT].bool_param if CORRECT in parameters else None
            response = b""
        query.result = InputResult(query.index, query.name, response, error)

    def _record(self, line: Sequence[_Stage], configuration: Configuration) -> None:
        """Record the results of the queries that entered first, in order."""
        done: list[_Query] = []
        while self._order and self._order[0].result is not None:
            query = self._order.popleft()
            if done and query.index != done[-1].index + 1:
                self._record_range(done, line, configuration)
                done = []
            done.append(query)
        if done:
            self._record_range(done, line, configuration)

    def _record_range(
        self, done: Sequence[_Query], line: Sequence[_Stage], configuration: Configuration
    ) -> None:
        """Record adjacent queries, as one range with those before as long as the route is equal."""
        now = self._clock.now()
        new = RecordedExecution(
            worker_id=WorkerId(" ".join(",".join(each.workers) for each in line if each.workers)),
            configuration=configuration,
            first=done[0].index,
            count=len(done),
            seconds=now - self._recorded_at,
            labelled=sum(query.correct is not None for query in done),
            correct=sum(query.correct is True for query in done),
        )
        weight = min(1.0, len(done) / LEAST_QUERIES / len(line))
        self._interval_s += weight * ((now - self._recorded_at) / len(done) - self._interval_s)
        self._recorded_at = now
        before = self._recording
        if before is None or (before.worker_id, before.stop) != (new.worker_id, new.first):
            self._recording_id = self._runs.new_id()
            self._recording = new
        else:
            self._recording = before.followed_by(new)
        queries = RecordedRange(self._recording_id, self._job.queries - self._recording.first)
        results = [query.result for query in done if query.result is not None]
        room_bytes = sum(query.room_bytes for query in done)
        self._record_results(queries, self._recording, results, room_bytes)


def _inspected_s(engine: Engine) -> float:
    return engine.query_s


def _calibrated(stage: Engine) -> float:
    return 0.0 if stage.exit is None else stage.exit.rate
