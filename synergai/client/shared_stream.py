"""Single queries of a client multiplexed over one stream of the protocol.

A streamed message costs both ends a fraction of a unary call. Each query still has its own
deadline, is cancelled when its caller is, and fails with its own error.
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

from synergai.client.deadlines import to_microseconds
from synergai.errors import Cancelled, DeadlineExceeded, SynergaiError, Unavailable
from synergai.protocol.oip_stream import WINDOW_METADATA, cancel_request
from synergai.protocol.status import error_from_stream

if TYPE_CHECKING:
    from synergai.client.channel import GatewayChannel
    from synergai.oip import inference_pb2

    Request: TypeAlias = inference_pb2.ModelInferRequest
    Reply: TypeAlias = inference_pb2.ModelStreamInferResponse | SynergaiError | None
    """A response; or the error that ended the stream for every query; or None if the stream ended
    for a reason that may concern one query only."""

MAX_STREAMED_BYTES: Final = 900_000
"""Larger requests are sent as unary calls, so that one rejected for its size fails alone and
large ones do not block the stream. Just below the smallest message limit of a gateway."""


class SharedStream:
    """Sends single queries over one stream and reopens the stream after it breaks.

    Args:
        channel: the gateway's.
        max_message_bytes: largest request of the channel.
        in_flight: maximum number of queries in flight.
    """

    def __init__(self, channel: GatewayChannel, max_message_bytes: int, in_flight: int) -> None:
        self._channel = channel
        self._max_streamed_bytes = min(MAX_STREAMED_BYTES, max_message_bytes)
        self._in_flight = in_flight
        self._multiplexer: QueryMultiplexer | None = None

    async def infer(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - sent to the gateway as the deadline
    ) -> inference_pb2.ModelInferResponse:
        """Return the response to `request`, retrying while the gateway is unavailable.

        Args:
            request: its id and its parameter ``timeout`` are overwritten.
            timeout: seconds for all attempts together; None means no limit.

        Raises:
            SynergaiError: the query failed, or the gateway could not be reached.
        """
        if request.ByteSize() > self._max_streamed_bytes:
            method = self._channel.oip.ModelInfer
            return await self._channel.call(method, request, timeout=timeout)
        return await self._channel.retry(partial(self._infer_once, request), timeout)

    async def close(self) -> None:
        """End the stream; queries in flight fail with `Cancelled`."""
        if self._multiplexer is not None:
            await self._multiplexer.close()

    async def _infer_once(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> inference_pb2.ModelInferResponse:
        self._channel.ensure_open()
        if self._multiplexer is None or self._multiplexer.closed:
            self._multiplexer = QueryMultiplexer(self._channel, self._in_flight)
        deadline = None if timeout is None else time.monotonic() + timeout
        reply = await self._multiplexer.request(request, timeout)
        if isinstance(reply, SynergaiError):
            # A new error per query: each collects its own traceback.
            raise type(reply)(str(reply))
        if reply is None:
            remaining = None if deadline is None else deadline - time.monotonic()
            return await self._channel.call_once(self._channel.oip.ModelInfer, request, remaining)
        if reply.error_message:
            raise error_from_stream(reply)
        return reply.infer_response


@dataclass(slots=True, eq=False)
class _PendingQuery:
    """A query without a reply; `deadline` is in the event loop's time."""

    request: Request
    reply: asyncio.Future[Reply]
    deadline: float | None
    sent: bool = False

    def expire(self) -> None:
        if not self.reply.done():
            self.reply.set_result(DeadlineExceeded("no response before the deadline"))


class QueryMultiplexer:
    """One call of ModelStreamInfer that carries concurrent queries, correlated by request id.

    Args:
        channel: the gateway's.
        in_flight: maximum number of queries in flight.

    Attributes:
        closed: the call has ended and takes no more queries.
    """

    def __init__(self, channel: GatewayChannel, in_flight: int) -> None:
        self._channel = channel
        self._call = channel.oip.ModelStreamInfer(metadata=((WINDOW_METADATA, str(in_flight)),))
        self._loop = asyncio.get_running_loop()
        self._ids = count()
        self._pending: dict[str, _PendingQuery] = {}
        self._send_queue: OrderedDict[str, _PendingQuery] = OrderedDict()
        self._wakeup = asyncio.Event()
        self.closed = False
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    async def request(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> Reply:
        """Send `request` and return its reply; cancel the query if the caller is cancelled.

        Args:
            request: its id and its parameter ``timeout`` are overwritten.
            timeout: seconds until the reply is `DeadlineExceeded`; None means no limit.
        """
        request.id = str(next(self._ids))
        deadline = None if timeout is None else self._loop.time() + timeout
        query = _PendingQuery(request, self._loop.create_future(), deadline)
        timer = None if deadline is None else self._loop.call_at(deadline, query.expire)
        self._pending[request.id] = query
        self._enqueue(query)
        try:
            return await query.reply
        finally:
            if timer is not None:
                timer.cancel()
            if self._pending.pop(request.id, None) is not None:
                if query.sent:
                    self._enqueue(query)
                else:
                    # Otherwise a gateway that stops reading makes us keep the request's tensors.
                    self._send_queue.pop(request.id, None)

    async def close(self) -> None:
        """End the call; pending queries fail with `Cancelled`."""
        self._end(Cancelled("the client was closed"))
        self._reader.cancel()
        await asyncio.wait([self._reader, self._writer])

    def _enqueue(self, query: _PendingQuery) -> None:
        self._send_queue[query.request.id] = query
        self._wakeup.set()

    async def _write(self) -> None:
        try:
            while await self._wakeup.wait():
                self._wakeup.clear()
                while self._send_queue:
                    _, query = self._send_queue.popitem(last=False)
                    message = self._next_message(query)
                    if message is not None:
                        await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended; the reader gets the reason
        finally:
            self._call.cancel()  # without a writer, pending queries would wait forever

    def _next_message(self, query: _PendingQuery) -> Request | None:
        """Return the message to send for `query`; None if its caller has gone."""
        if query.sent:  # enqueued again to be cancelled
            return cancel_request(query.request.id)
        if query.reply.done():
            return None
        query.sent = True
        if query.deadline is not None:
            remaining = query.deadline - self._loop.time()
            query.request.parameters["timeout"].int64_param = to_microseconds(remaining)
        return query.request

    async def _read(self) -> None:
        failure: SynergaiError | None = None
        try:
            async for message in self._call:
                if not message.infer_response.id:
                    return  # an error of an unknown query: each retries as a unary call
                query = self._pending.pop(message.infer_response.id, None)
                # Replies to cancelled queries match none.
                if query is not None and not query.reply.done():
                    query.reply.set_result(message)
            failure = Unavailable(f"{self._channel.target} ended the stream")
        except grpc.aio.AioRpcError as error:
            cause = self._channel.to_error(error)
            failure = cause if isinstance(cause, Unavailable) else None
        finally:
            self._end(failure)

    def _end(self, reply: SynergaiError | None) -> None:
        """Give all pending queries `reply`; the first call decides."""
        self.closed = True
        self._writer.cancel()
        self._call.cancel()
        for query in self._pending.values():
            if not query.reply.done():
                query.reply.set_result(reply)
        self._pending.clear()
