"""Single queries of a client, all of them over one stream of the protocol.

A streamed message costs both ends a fraction of what a call of its own does. Queries keep what a
call would give them: a deadline, an end when their caller leaves, and an error of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc

from synergai.client.deadlines import microseconds
from synergai.errors import Cancelled, DeadlineExceeded, SynergaiError, Unavailable
from synergai.protocol.oip_stream import WINDOW_METADATA, cancel_request
from synergai.protocol.status import error_from_stream

if TYPE_CHECKING:
    from synergai.client.channel import Connection
    from synergai.oip import inference_pb2

    Request: TypeAlias = inference_pb2.ModelInferRequest
    Answer: TypeAlias = inference_pb2.ModelStreamInferResponse | SynergaiError | None
    """An answer; or the error that every query of the stream ended with; or None: the stream
    ended for a reason that may be that of one query alone."""

STREAMED_BYTES: Final = 900_000
"""Larger requests are calls of their own: what a gateway does not take then fails alone, and
nobody waits behind it. The smallest cap that a gateway can have is a little more."""


class Queries:
    """Asks single queries over one stream, which is opened again when it broke.

    Args:
        connection: where to.
        max_message_bytes: largest request of the connection.
        in_flight: how many are asked at once at most.
    """

    def __init__(self, connection: Connection, max_message_bytes: int, in_flight: int) -> None:
        self._connection = connection
        self._streamed_bytes = min(STREAMED_BYTES, max_message_bytes)
        self._in_flight = in_flight
        self._stream: SharedStream | None = None

    async def ask(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - it is the deadline that the gateway is told
    ) -> inference_pb2.ModelInferResponse:
        """The response to a request; asked again while nobody answers.

        Args:
            request: its id and its parameter ``timeout`` are overwritten.
            timeout: seconds for all attempts together; None means no limit.

        Raises:
            SynergaiError: what the gateway said, or why it could not be asked.
        """
        if request.ByteSize() > self._streamed_bytes:
            method = self._connection.oip.ModelInfer
            return await self._connection.call(method, request, timeout=timeout)
        return await self._connection.repeat(partial(self._ask_once, request), timeout)

    async def close(self) -> None:
        """End the stream; queries under way end with `Cancelled`."""
        if self._stream is not None:
            await self._stream.close()

    async def _ask_once(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> inference_pb2.ModelInferResponse:
        self._connection.check_open()
        if self._stream is None or self._stream.is_over:
            self._stream = SharedStream(self._connection, self._in_flight)
        give_up_at = None if timeout is None else time.monotonic() + timeout
        answer = await self._stream.ask(request, timeout)
        if isinstance(answer, SynergaiError):
            # Of each query its own: an error remembers wherever it was raised.
            raise type(answer)(str(answer))
        if answer is None:
            left = None if give_up_at is None else give_up_at - time.monotonic()
            return await self._connection.call_once(self._connection.oip.ModelInfer, request, left)
        if answer.error_message:
            raise error_from_stream(answer)
        return answer.infer_response


@dataclass(slots=True, eq=False)
class _Query:
    """A query on a stream; `expires_at` is in the loop's time."""

    request: Request
    answer: asyncio.Future[Answer]
    expires_at: float | None
    is_sent: bool = False

    def expire(self) -> None:
        if not self.answer.done():
            self.answer.set_result(DeadlineExceeded("there was no answer in time"))


class SharedStream:
    """One call of ModelStreamInfer that carries the queries of whoever asks.

    Args:
        connection: where to.
        in_flight: how many are asked at once at most.

    Attributes:
        is_over: nothing can be asked any more.
    """

    def __init__(self, connection: Connection, in_flight: int) -> None:
        self._connection = connection
        self._call = connection.oip.ModelStreamInfer(metadata=((WINDOW_METADATA, str(in_flight)),))
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._unanswered: dict[str, _Query] = {}
        self._unsent: OrderedDict[str, _Query] = OrderedDict()
        self._more = asyncio.Event()
        self.is_over = False
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    async def ask(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> Answer:
        """What becomes of a request; it is called off if nobody waits any more.

        Args:
            request: its id and its parameter ``timeout`` are overwritten.
            timeout: seconds until the answer is `DeadlineExceeded`; None means no limit.
        """
        request.id = str(next(self._numbers))
        expires_at = None if timeout is None else self._loop.time() + timeout
        query = _Query(request, self._loop.create_future(), expires_at)
        timer = None if expires_at is None else self._loop.call_at(expires_at, query.expire)
        self._unanswered[request.id] = query
        self._send(query)
        try:
            return await query.answer
        finally:
            if timer is not None:
                timer.cancel()
            if self._unanswered.pop(request.id, None) is not None:
                if query.is_sent:
                    self._send(query)
                else:
                    # A gateway that does not read would have us keep it, with its tensors.
                    self._unsent.pop(request.id, None)

    async def close(self) -> None:
        """End the call; queries under way are answered with `Cancelled`."""
        self._end(Cancelled("the client was closed"))
        self._reader.cancel()
        await asyncio.wait([self._reader, self._writer])

    def _send(self, query: _Query) -> None:
        self._unsent[query.request.id] = query
        self._more.set()

    async def _write(self) -> None:
        """Send what there is; what comes meanwhile follows without anybody waiting for it."""
        try:
            while await self._more.wait():
                self._more.clear()
                while self._unsent:
                    _, query = self._unsent.popitem(last=False)
                    message = self._message(query)
                    if message is not None:
                        await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over, and its reader is told why
        finally:
            self._call.cancel()  # a stream that is not written to would keep everybody waiting

    def _message(self, query: _Query) -> Request | None:
        """What there is to send of a query; None if nobody waits for it any more."""
        if query.is_sent:  # it comes here a second time to be called off
            return cancel_request(query.request.id)
        if query.answer.done():
            return None
        query.is_sent = True
        if query.expires_at is not None:
            left = query.expires_at - self._loop.time()
            query.request.parameters["timeout"].int64_param = microseconds(left)
        return query.request

    async def _read(self) -> None:
        ending: SynergaiError | None = None
        try:
            async for message in self._call:
                if not message.infer_response.id:
                    return  # a server may not say whose error it is: each then asks by itself
                query = self._unanswered.pop(message.infer_response.id, None)
                # One that was called off meanwhile is not known any more.
                if query is not None and not query.answer.done():
                    query.answer.set_result(message)
            ending = Unavailable(f"{self._connection.target} ended the stream")
        except grpc.aio.AioRpcError as failure:
            error = self._connection.error_of(failure)
            ending = error if isinstance(error, Unavailable) else None
        finally:
            self._end(ending)

    def _end(self, answer: SynergaiError | None) -> None:
        """Nothing comes any more: answer whoever waits. The first word counts."""
        self.is_over = True
        self._writer.cancel()
        self._call.cancel()
        for query in self._unanswered.values():
            if not query.answer.done():
                query.answer.set_result(answer)
        self._unanswered.clear()
