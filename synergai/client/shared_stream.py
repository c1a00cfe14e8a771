"""Single queries of a client over one stream of the protocol.

A streamed message costs both ends a fraction of a unary call. Each query still has its own
deadline, is cancelled when its caller is, and fails with its own error.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.client.deadlines import to_microseconds
from synergai.client.multiplexer import QueryMultiplexer
from synergai.errors import Cancelled, DeadlineExceeded, Unavailable
from synergai.wire.parameters import cancel_request
from synergai.wire.status import error_from_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from synergai.client.channel import GatewayChannel
    from synergai.client.multiplexer import Reply, Request
    from synergai.oip import inference_pb2

MAX_STREAMED_BYTES: Final = 900_000
"""Larger requests are sent as unary calls, so that one rejected for its size fails alone and
large ones do not block the stream. Just below the smallest message limit of a gateway."""


class SharedStream:
    """Sends single queries over one stream and reopens the stream after it breaks."""

    def __init__(self, channel: GatewayChannel, max_message_bytes: int, in_flight: int) -> None:
        self._channel = channel
        self._max_streamed_bytes = min(MAX_STREAMED_BYTES, max_message_bytes)
        self._in_flight = in_flight
        self._stream: QueryStream | None = None
        self._closed = False

    async def infer(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - sent to the gateway as the deadline
    ) -> inference_pb2.ModelInferResponse:
        """Return the response to `request`, retrying while the gateway is unavailable."""
        if request.ByteSize() > self._max_streamed_bytes:
            method = self._channel.oip.ModelInfer
            return await self._channel.call(method, request, timeout=timeout)
        return await self._channel.retry(partial(self._infer_once, request), timeout)

    async def close(self) -> None:
        """End the stream; queries in flight fail with `Cancelled`."""
        self._closed = True
        if self._stream is not None:
            await self._stream.close()

    async def _infer_once(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> inference_pb2.ModelInferResponse:
        self._channel.ensure_open()
        if self._stream is None or self._stream.closed:
            self._stream = QueryStream(self._channel, self._in_flight)
        stream = self._stream
        deadline = None if timeout is None else time.monotonic() + timeout
        reply = await stream.request(request, timeout)
        if reply is None:
            if self._closed:
                raise Cancelled("the client was closed")
            if isinstance(stream.failure, Unavailable):
                # A new error per query: each collects its own traceback.
                raise Unavailable(str(stream.failure))
            # The failure may concern one query only, so each is sent again separately.
            remaining = None if deadline is None else deadline - time.monotonic()
            return await self._channel.call_once(self._channel.oip.ModelInfer, request, remaining)
        if reply.error_message:
            raise error_from_stream(reply)
        return reply.infer_response


@dataclass(slots=True, eq=False)
class _Query:
    """A query on a stream; `deadline` is in the event loop's time."""

    request: Request
    reply: asyncio.Future[Reply]
    deadline: float | None
    sent: bool = False


class QueryStream(QueryMultiplexer):
    """One open stream of single queries, each with its own deadline."""

    def __init__(self, channel: GatewayChannel, in_flight: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._send_queue: OrderedDict[str, _Query] = OrderedDict()
        self._wakeup = asyncio.Event()
        super().__init__(channel, in_flight, self._messages(), cancellable=True)

    async def request(
        self,
        request: Request,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> Reply:
        """Send `request`, with another id; cancel the query if the caller is cancelled."""
        reply = self.expect(request)
        deadline = None if timeout is None else self._loop.time() + timeout
        query = _Query(request, reply, deadline)
        self._enqueue(query)
        try:
            async with asyncio.timeout_at(deadline):
                return await reply
        except TimeoutError:
            raise DeadlineExceeded("no response before the deadline") from None
        finally:
            if self.forget(request.id):
                if query.sent:
                    self._enqueue(query)
                else:
                    # Otherwise a gateway that stops reading makes us keep the request's tensors.
                    self._send_queue.pop(request.id, None)

    def _enqueue(self, query: _Query) -> None:
        self._send_queue[query.request.id] = query
        self._wakeup.set()

    async def _messages(self) -> AsyncIterator[Request]:
        while await self._wakeup.wait():
            self._wakeup.clear()
            while self._send_queue:
                _, query = self._send_queue.popitem(last=False)
                message = self._next_message(query)
                if message is not None:
                    yield message

    def _next_message(self, query: _Query) -> Request | None:
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
