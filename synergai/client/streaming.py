"""Bidirectional calls, and many queries over one of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import grpc

from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.runtime.tasks import TaskBag, is_being_cancelled
from synergai.wire.parameters import WINDOW_METADATA, read_parameters
from synergai.wire.status import error_from_stream
from synergai.wire.writes import keep_status, write_all

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Iterator,
        Mapping,
    )

    from numpy.typing import ArrayLike, NDArray

    from synergai.client.channel import GatewayChannel
    from synergai.oip import inference_pb2

    Inputs: TypeAlias = Mapping[str, ArrayLike]
    ManyInputs: TypeAlias = Iterable[Inputs] | AsyncIterable[Inputs]
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

    A reply without an id answers the oldest query, as servers that omit ids answer in order.
    """

    def __init__(
        self, channel: GatewayChannel, window: int, requests: AsyncIterator[Request]
    ) -> None:
        self._target = channel.target
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

    def expect(self, request: Request) -> asyncio.Future[Reply]:
        """Give `request` an id and return the future of its reply."""
        request.id = str(next(self._ids))
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._closed:
            reply.set_result(None)
        else:
            self._pending[request.id] = reply
        return reply

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
        request_id = message.infer_response.id or next(iter(self._pending), "")
        reply = self._pending.pop(request_id, None)
        if reply is None:
            raise InvalidInput(
                f"the server sent a response to an unknown query: id {message.infer_response.id!r}"
            )
        if not reply.done():
            reply.set_result(message)

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


@dataclass(frozen=True, slots=True)
class InferResult:
    """Outputs of one query; ``result["name"]`` is the output of that name, or raises `error`.

    Attributes:
        outputs: arrays by output name, with the engine's dtypes and shapes; read-only views of
            the received bytes.
        error: why the query of a stream failed; it has no outputs then.
    """

    outputs: dict[str, NDArray[Any]]
    engine: str = ""
    version: str = ""
    parameters: dict[str, bool | int | float | str] = field(default_factory=dict)
    error: SynergaiError | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self.error is not None:
            raise self.error
        return self.outputs[name]


def parse_response(response: inference_pb2.ModelInferResponse) -> InferResult:
    """Convert a response of the protocol."""
    from synergai.wire import arrays

    return InferResult(
        outputs=arrays.read_outputs(response),
        engine=response.model_name,
        version=response.model_version,
        parameters=read_parameters(response.parameters),
    )


async def iterate(items: ManyInputs) -> AsyncIterator[Inputs]:
    """Yield the items of an iterable, asynchronous or not."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def stream_queries(
    channel: GatewayChannel,
    inputs: ManyInputs,
    make_request: Callable[[Inputs], Awaitable[Request]],
    window: int,
) -> AsyncGenerator[InferResult, None]:
    """Yield the result of each query, in the order of `inputs`; a failed one has its error.

    An error of reading the inputs is raised after the results of those before it.
    """
    channel.ensure_open()
    slots = asyncio.Semaphore(window)
    # In the order of the inputs; bounded by the slots. An error is one of reading the inputs; None
    # follows the end of the call.
    replies: asyncio.Queue[asyncio.Future[Reply] | InferResult | BaseException | None]
    replies = asyncio.Queue()

    async def requests() -> AsyncIterator[Request]:
        try:
            async for item in iterate(inputs):
                await slots.acquire()
                try:
                    request = await make_request(item)
                except InvalidInput as error:
                    replies.put_nowait(InferResult({}, error=error))
                    continue
                replies.put_nowait(multiplexer.expect(request))
                yield request
        except BaseException as error:
            if is_being_cancelled():
                raise
            replies.put_nowait(error)  # the caller's, in whose task alone it may be raised

    multiplexer = QueryMultiplexer(channel, window, requests())
    multiplexer.reader.add_done_callback(lambda _: replies.put_nowait(None))
    try:
        while (reply := await replies.get()) is not None:
            if isinstance(reply, BaseException):
                raise reply
            if isinstance(reply, InferResult):
                slots.release()
                yield reply
                continue
            message = await reply
            if message is None:
                break
            slots.release()
            yield _parse_message(message)
        if multiplexer.failure is not None:
            raise multiplexer.failure
    finally:
        await multiplexer.close()


def _parse_message(
    message: inference_pb2.ModelStreamInferResponse,
) -> InferResult:
    if message.error_message:
        return InferResult({}, error=error_from_stream(message))
    return parse_response(message.infer_response)


T = TypeVar("T")
_Step: TypeAlias = "tuple[T, BaseException | None]"
"""An item, or an error: as a future's exception, asyncio would replace it by one of its own."""
_END: Final[Any] = object()


async def advance_in_thread(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yield the items of an iterator, each step of which runs in a thread of its own.

    It may wait for ever. Threads of a pool would run out, and keep the interpreter from exiting.
    """
    wanted: SimpleQueue[Future[_Step[T]] | None] = SimpleQueue()
    arguments = (copy_context().run, items, wanted)
    Thread(target=_advance, args=arguments, name="synergai-inputs", daemon=True).start()
    del items, arguments  # else the loop would close the caller's generator
    try:
        while True:
            found: Future[_Step[T]] = Future()
            wanted.put(found)
            item, error = await asyncio.wrap_future(found)
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        wanted.put(None)


def _advance(
    run: Callable[..., T], items: Iterator[T], wanted: SimpleQueue[Future[_Step[T]] | None]
) -> None:
    """Take an item for each future that is wanted, until one is None or cancelled."""
    while (found := wanted.get()) is not None and found.set_running_or_notify_cancel():
        try:
            found.set_result((run(next, items, _END), None))
        except BaseException as error:  # noqa: BLE001 - raised where the item is awaited
            found.set_result((_END, error))
