"""Bidirectional calls, and queries multiplexed over one by their ids."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import grpc

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.tasks import TaskBag
from synergai.wire.parameters import WINDOW_METADATA
from synergai.wire.writes import keep_status, write_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from synergai.client.channel import GatewayChannel
    from synergai.oip import inference_pb2

    Request: TypeAlias = inference_pb2.ModelInferRequest
    Reply: TypeAlias = inference_pb2.ModelStreamInferResponse | None
    """A message with a response or an error; None if the call ended without one."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_ID_BITS: Final = 48
"""Random bits of the first id of a call."""
_END_S: Final = 0.5
"""Time for the end of a call without queries, before it is cancelled."""


class DuplexCall(Generic[RequestT, ResponseT]):
    """A bidirectional call whose requests are written by a separate task.

    Iterating over it yields the responses, and raises the error that the call ended with, or that
    of making a request.
    """

    def __init__(
        self,
        channel: GatewayChannel,
        call: grpc.aio.StreamStreamCall[RequestT, ResponseT],
        requests: AsyncIterator[RequestT],
    ) -> None:
        self._channel = channel
        self._gateway = channel.gateway
        self._call = keep_status(call)
        self._tasks = TaskBag()
        self._writer = self._tasks.start_awaited(write_all(self._call, requests))

    async def __aiter__(self) -> AsyncIterator[ResponseT]:
        """Yield the responses; raise the error of the call, or of making a request."""
        try:
            async for message in self._call:
                yield message
        except grpc.aio.AioRpcError as failure:
            raise self._channel.to_error(failure, self._gateway) from None
        except asyncio.CancelledError as cancellation:
            self._check_writer()
            raise self._channel.cancellation_cause(cancellation) from None
        self._check_writer()

    async def half_close(self) -> None:
        """End the requests here; the server ends the call once it has answered."""
        self._writer.cancel()
        await self._tasks.wait()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the call has ended
            await self._call.done_writing()

    def cancel(self) -> None:
        """Cancel the call and its writer."""
        self._writer.cancel()
        self._call.cancel()

    async def close(self) -> None:
        """Cancel the call and wait for its writer to end."""
        self.cancel()
        await self._tasks.wait()
        # A call keeps its connection open while something refers to it, such as a task's traceback.
        del self._call, self._writer

    def _check_writer(self) -> None:
        if self._writer.done() and not self._writer.cancelled():
            self._writer.result()


class QueryMultiplexer:
    """One call of ModelStreamInfer that carries concurrent queries, correlated by request id.

    Args:
        cancellable: queries may be cancelled, so that replies to unknown ids are ignored; a reply
            without an id then ends the call. Otherwise, an unknown id ends the call, and a reply
            without an id answers the oldest query, as servers that omit ids answer in order.
    """

    def __init__(
        self,
        channel: GatewayChannel,
        window: int,
        requests: AsyncIterator[Request],
        *,
        cancellable: bool,
    ) -> None:
        self._target = channel.target
        self._cancellable = cancellable
        # Ids only need to be unique in a call. They begin at random because the gateway draws the
        # version of a request in a rollout from its id, for short-lived clients, too.
        self._ids = count(random.getrandbits(_ID_BITS))
        self._pending: dict[str, asyncio.Future[Reply]] = {}
        call = channel.oip.ModelStreamInfer(metadata=((WINDOW_METADATA, str(window)),))
        self._call = DuplexCall(channel, call, requests)
        self._closed = False
        self.failure: Exception | None = None
        self._reading = TaskBag()
        self.reader = self._reading.start(self._read())

    @property
    def closed(self) -> bool:
        """The call has ended and takes no more queries."""
        return self._closed

    def expect(self, request: Request) -> asyncio.Future[Reply]:
        """Give `request` an id and return the future of its reply."""
        request.id = str(next(self._ids))
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._closed:
            reply.set_result(None)
        else:
            self._pending[request.id] = reply
        return reply

    def forget(self, request_id: str) -> bool:
        """Stop expecting a reply; return whether it was still expected."""
        return self._pending.pop(request_id, None) is not None

    async def close(self) -> None:
        """End the call, or cancel it if replies are pending, which become None.

        gRPC reports the status of a cancelled call later, perhaps to a loop that has ended.
        """
        try:
            if not (self._pending or self._closed):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_S):
                        await self._call.half_close()
                        await asyncio.wait([self.reader])
        finally:
            self._end(None)
            await self._reading.close()
            await self._call.close()
            del self.reader  # whose traceback refers to the call

    async def _read(self) -> None:
        try:
            async for message in self._call:
                self._resolve(message)
        except Exception as error:  # noqa: BLE001 - kept for those who await the replies
            self._end(error)
        else:
            unanswered = f"{self._target} ended the stream before all queries were answered"
            self._end(Unavailable(unanswered) if self._pending else None)
        finally:
            self._end(None)  # if it was cancelled

    def _resolve(self, message: inference_pb2.ModelStreamInferResponse) -> None:
        request_id = message.infer_response.id
        if not request_id and not self._cancellable:
            request_id = next(iter(self._pending), "")
        reply = self._pending.pop(request_id, None)
        if reply is not None:
            if not reply.done():
                reply.set_result(message)
        elif not (request_id and self._cancellable):
            raise InvalidInput(
                f"the server sent a response to an unknown query: id {message.infer_response.id!r}"
            )

    def _end(self, failure: Exception | None) -> None:
        """Cancel the call and end all pending replies; the first failure counts."""
        if self._closed:
            return
        self._closed = True
        self.failure = failure
        self._call.cancel()
        for reply in self._pending.values():
            if not reply.done():
                reply.set_result(None)
        self._pending.clear()
