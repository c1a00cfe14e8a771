"""Queries of a job in stages: read as there is room, and prepared for each stage.

Few queries are on their way at a time, with their inputs, so that a loss needs no second read. How
large their tensors are is known once one of them has reached the last stage.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from gateway.fleet.routes import asked_of_exit
from gateway.jobs.input_feed import TensorRoom, read_inputs
from gateway.journal.record_log import DamagedLog, RecordLog
from synergai.errors import InvalidInput
from synergai.names import engine_of_stage, split_version
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.runtime.tasks import TaskBag
from synergai.wire.job_inputs import input_of, sample_input, split_input
from synergai.wire.stages import as_inputs, of_stage
from synergai.wire.validation import EXIT, LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.fleet.routes import Outputs
    from gateway.journal.data_store import InputResult
    from synergai.core.route import Route
    from synergai.core.scheduling.state.jobs import Ranges
    from synergai.domain import Job
    from synergai.wire.request_codec import RequestDecoder, RequestHeader

MOST_QUERIES: Final = 128
"""Queries of a job that are on their way."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Their inputs and largest tensors, unless a single query has more."""
FIRST_QUERIES: Final = 4
"""Queries of a run that are on their way before one has reached the last stage."""
WORTH_S: Final = 0.5
"""Time that the queries on their way take. A job that moves to other stages ends in the former ones
within this time."""
LEAST_QUERIES: Final = 4
"""Least number of queries on their way for each worker, however long they take."""
_REFILL: Final = 0.25
"""Share of the queries on their way that is read together."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StagedQuery:
    """A query that is not recorded.

    Attributes:
        inputs: serialised ``Input`` of the client.
        room_bytes: room in memory that it has.
        client: the request of the client, without its tensors.
        data: serialised ``Input`` of the stage that it waits for.
        result: its outcome, once it is done.
        correct: whether a sample was answered correctly; None without a label.
    """

    index: int
    inputs: bytes
    room_bytes: int
    name: str = ""
    client: ModelInferRequest = field(default_factory=ModelInferRequest)
    data: bytes = b""
    result: InputResult | None = None
    correct: bool | None = None

    def begin(self, route: Route, decoder: RequestDecoder) -> None:
        """Prepare the input of the first stage, whose worker reports what is wrong with it."""
        self.data = self.inputs
        try:
            found = split_input(self.inputs)
            self.name = found.name
            if found.request is not None:
                header = decoder.decode(found.request)
                self.client = header.message
                self.data = _first_input(route, self.inputs, header)
        except (DecodeError, InvalidInput):
            pass

    def pass_on(self, route: Route, position: int, outputs: Outputs) -> int:
        """Prepare the input of the engine at a position from the outputs of the stage before.

        Return how many bytes the query has in memory from now on.
        """
        message, _ = outputs
        engine, is_last = route.engines[position], route.is_last(position)
        if LABEL in message.parameters:
            self.client = ModelInferRequest(parameters={LABEL: message.parameters[LABEL]})
        if route.begins_again(position):
            self.data = self.inputs
            return len(self.inputs)
        request = of_stage(
            as_inputs(*outputs),
            self.client,
            engine,
            is_last=is_last,
            asked=asked_of_exit(route, position),
        )
        if is_last:  # the response is that of the whole engine
            request.message.model_name, _ = split_version(engine_of_stage(engine.name))
        self.data = input_of(request.message, request.raw)
        return len(self.inputs) + len(self.data)


class StagedFeed:
    """Reads the queries of a run.

    Args:
        pending: queries that are not recorded.
        log: their inputs; None for samples.
        largest_bytes: of a query in memory, as far as it is known.
        begin: called with adjacent queries that have been read.
        fail: called with the reason once the inputs cannot be read.

    Attributes:
        interval_s: time between results; 0 as long as it is unknown.
        workers: number of those that compute.
    """

    def __init__(
        self,
        job: Job,
        pending: Ranges,
        log: RecordLog | None,
        room: TensorRoom,
        largest_bytes: int,
        begin: Callable[[Sequence[StagedQuery]], None],
        fail: Callable[[str], None],
    ) -> None:
        self._job = job
        self._pending = pending
        self._log = log
        self._room = room
        self._largest_bytes = largest_bytes
        self.interval_s = 0.0
        self.workers = 1
        self._begin = begin
        self._fail = fail
        self._under_way = 0
        self._room_bytes = 0
        self._sized = False
        self._moved = asyncio.Event()
        self._tasks = TaskBag()

    def start(self) -> None:
        self._tasks.start(self._feed())

    def observe(self, size: int) -> None:
        self._largest_bytes = max(self._largest_bytes, size)

    def set_sized(self) -> None:
        """Note that a query has reached the last stage."""
        if not self._sized:
            self._sized = True
            self._moved.set()

    def recorded(self, queries: int, room_bytes: int) -> None:
        """Make room for other queries, as so many are recorded."""
        self._give(room_bytes)
        self._under_way -= queries
        self._moved.set()

    def close(self) -> None:
        """Read nothing more, and free all room."""
        self._tasks.cancel()
        self._give(self._room_bytes)

    async def _feed(self) -> None:
        try:
            while self._pending.total:
                await self._feed_some()
        except (DamagedLog, OSError) as error:
            _log.error("job %s: its inputs cannot be read: %s", self._job.id, error)
            self._fail("its inputs can no longer be read")

    async def _feed_some(self) -> None:
        while True:
            most = self._most_queries()
            free = most - self._under_way
            if not self._under_way or free >= min(most * _REFILL, self._pending.total):
                break
            self._moved.clear()
            await self._moved.wait()
        wanted, size = max(1, free), self._largest_bytes
        await self._room.take(self._job, size)
        self._room_bytes += size
        granted = 1
        while granted < wanted and self._room.try_take(size):
            self._room_bytes += size
            granted += 1
        first, stop = self._pending.take(granted, sys.maxsize) or (0, 0)
        found = await self._read(first, stop - first)
        if first + len(found) < stop:
            self._pending.add(first + len(found), stop)
        self._give((granted - len(found)) * size)
        self._under_way += len(found)
        self.observe(max(map(len, found)))
        self._begin([StagedQuery(index, data, size) for index, data in enumerate(found, first)])

    async def _read(self, first: int, queries: int) -> list[bytes]:
        if self._log is None:
            return [sample_input(index) for index in range(first, first + queries)]
        return await asyncio.to_thread(read_inputs, self._log, first, queries)

    def _most_queries(self) -> int:
        if not self._sized:
            return FIRST_QUERIES
        most = max(1, min(MOST_QUERIES, MOST_BYTES // self._largest_bytes))
        if not self.interval_s:
            return most
        worth = math.ceil(WORTH_S / self.interval_s)
        return min(most, max(worth, LEAST_QUERIES * self.workers))

    def _give(self, size: int) -> None:
        self._room_bytes -= size
        self._room.give(size)


def _first_input(route: Route, data: bytes, header: RequestHeader) -> bytes:
    answers, asked = route.engines[0].exit is not None, asked_of_exit(route, 0)
    is_asked = EXIT in header.message.parameters  # which is not for clients
    if not (asked or is_asked) and (answers or not header.message.outputs):
        return data
    message = ModelInferRequest()
    message.CopyFrom(header.message)
    message.parameters.pop(EXIT, None)
    if asked:
        message.parameters[EXIT].string_param = asked
    if not answers:
        message.ClearField("outputs")  # the last stage returns them
    return input_of(message, header.raw)
