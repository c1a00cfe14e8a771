"""Connection of a client to its gateways."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from synergai.client.channel import GatewayChannel
from synergai.client.requests import InputConverter, to_microseconds
from synergai.client.streaming import QueryMultiplexer
from synergai.client.target import DEFAULT_TARGET
from synergai.domain import Engine, EngineName
from synergai.errors import Cancelled, DeadlineExceeded, InvalidInput, Unavailable
from synergai.runtime.addresses import check_target
from synergai.wire.converters import engine_from_metadata
from synergai.wire.credentials import Identity, channel_credentials, token_metadata
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, ENVELOPE_BYTES
from synergai.wire.parameters import cancel_request
from synergai.wire.status import error_from_stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from synergai.client.requests import Budget
    from synergai.client.streaming import Reply, Request
    from synergai.oip import inference_pb2


# A streamed message costs both ends a fraction of a unary call. Each query still has its own
# deadline, is cancelled when its caller is, and fails with its own error.

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
        """End the stream of a closed channel; queries in flight fail."""
        stream, self._stream = self._stream, None  # the client may be closed again
        if stream is not None:
            await stream.close()

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
            if self._channel.closed:
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


class GatewayConnection:
    """Connection to a gateway, or to the leader of several; `Client` extends it, see there."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        attempts: int = 4,
        patience: float = 30.0,
        in_flight: int = 1024,
        tls_ca: Path | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        token: str = "",
        insecure: bool = False,
    ) -> None:
        if attempts < 1:
            raise InvalidInput(f"attempts must be at least 1, not {attempts}")
        if in_flight < 1:
            raise InvalidInput(f"in_flight must be at least 1, not {in_flight}")
        self.targets = tuple(map(check_target, target.split(",")))
        self._max_message_bytes = max_message_bytes
        self._attempts = attempts
        self._patience = patience
        self._credentials = channel_credentials(tls_ca, Identity.read(tls_cert, tls_key))
        self._metadata = token_metadata(
            token, target, encrypted=tls_ca is not None, insecure=insecure
        )
        self._in_flight = in_flight
        self._opened: GatewayChannel | None = None

    async def connect(self) -> Self:
        """Open the client, or open it again after `close`, or after its event loop has ended.

        It opens at the first call otherwise. Does not wait for the gateway.
        """
        if self._opened is None or self._opened.has_ended:
            self._open()
        return self

    async def close(self) -> None:
        """Close the client; calls in flight fail with `Cancelled`, and so do further ones."""
        channel = self._channel
        channel.closed = True  # no more calls; `connect` opens another, even if this is cancelled
        async with AsyncExitStack() as closing:
            closing.push_async_callback(self._inputs.close)
            closing.push_async_callback(channel.close)
            closing.push_async_callback(self._shared_stream.close)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _channel(self) -> GatewayChannel:
        return self._opened or self._open()

    def _open(self) -> GatewayChannel:
        try:
            asyncio.get_running_loop()  # which the channel is bound to
        except RuntimeError:
            raise InvalidInput("connect the client first, with `await client.connect()`") from None
        self._opened = channel = GatewayChannel(
            self.targets,
            self._max_message_bytes,
            self._attempts,
            self._patience,
            self._credentials,
            self._metadata,
        )
        # In a loop that has ended, calls may have left slots taken and fetches pending.
        self._shared_stream = SharedStream(channel, self._max_message_bytes, self._in_flight)
        self._slots = asyncio.Semaphore(self._in_flight)
        self._inputs = InputConverter(partial(self._describe, within_s=None))
        return channel

    @property
    def max_input_bytes(self) -> int:
        """Size of the largest input of a job, serialised."""
        return self._max_message_bytes - ENVELOPE_BYTES

    @asynccontextmanager
    async def _slot(self, budget: Budget) -> AsyncGenerator[None, None]:
        """Hold a slot of a query in flight: gateways reject those beyond their capacity."""
        slots = self._slots
        try:
            async with asyncio.timeout(budget.left()):
                await slots.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                "the query's deadline passed while it waited for other queries of this client"
            ) from None
        try:
            yield
        finally:
            slots.release()

    async def _describe(self, name: str, within_s: float | None) -> Engine:
        """Return the description of an engine; the gateway waits until it has been inspected."""
        method = self._channel.oip.ModelMetadata
        from synergai.oip import inference_pb2

        engine, _, version = name.partition("/")
        request = inference_pb2.ModelMetadataRequest(name=engine, version=version)
        response = await self._channel.call(method, request, timeout=within_s)
        described = engine_from_metadata(response)
        return replace(described, name=EngineName(name)) if version else described
