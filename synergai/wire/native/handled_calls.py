"""Handlers, and the two kinds of calls: with a task of their own, and without one."""

from __future__ import annotations

import asyncio
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError

from synergai.errors import InternalError, InvalidInput, NotSupported, SynergaiError
from synergai.runtime.tasks import TaskBag
from synergai.wire import rpc
from synergai.wire.limits import MAX_INCOMPLETE_BYTES
from synergai.wire.memory_bounds import IncompleteRequests
from synergai.wire.native.call import (
    COMPLETE,
    ENDED,
    HANDLING,
    IGNORED,
    PREFIX_BYTES,
    RESPONDING,
    Call,
    Compressed,
    complete,
    prefixed,
    too_large,
)
from synergai.wire.native.flow import RESPONSE, SUCCEEDED, UNSUPPORTED_TYPE, encoded
from synergai.wire.rpc import BegunUnary, Service, behaviour_of
from synergai.wire.server_call import find_handler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from synergai.wire.native.flow import Stream
    from synergai.wire.native.headers import CallHeaders
    from synergai.wire.request_codec import Buffer
    from synergai.wire.rpc import PendingCall
    from synergai.wire.server_call import Interceptor, Peer

_RECEIVED_BYTES: Final = 64 << 10
_FORMATS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Handlers:
    """The handlers, and the calls that they handle.

    Args:
        max_bytes: largest message of a client.
        interceptor: may replace the handler of a call, or end the call.

    Attributes:
        incomplete: the requests that have not arrived in full.
        connection_age: seconds after which a connection is retired, and after which it then ends.
        taskless: handlers, by path, of calls that need no task until they respond.
        received: memory into which connections receive what they handle at once.
    """

    def __init__(self, max_bytes: int, interceptor: Interceptor | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_bytes = max_bytes
        self.connection_age = (0.0, 0.0)
        self.incomplete = IncompleteRequests(MAX_INCOMPLETE_BYTES)
        self.received = memoryview(bytearray(_RECEIVED_BYTES))
        self.tasks = TaskBag()
        self.interceptor = interceptor
        self.taskless: dict[str, BegunUnary[Any]] = {}
        self._methods: dict[str, Any] = {}
        self._handlers: list[grpc.GenericRpcHandler] = []

    def add(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add handlers; of several that suit a call, the first one is used."""
        for handler in handlers:
            self._handlers.append(handler)
            if isinstance(handler, Service):
                self._methods = handler.paths | self._methods
        if self.interceptor is None:
            begun = ((p, m) for p, m in self._methods.items() if isinstance(m, BegunUnary))
            self.taskless = dict(begun)

    def find(self, path: str) -> Any:
        """Return the handler of a method; None without one."""
        return self._methods.get(path) or find_handler(self._handlers, path)


def accept_call(
    peer: Peer, handlers: Handlers, stream: Stream, headers: CallHeaders
) -> Call | None:
    """Return the call that a client has begun on a stream, which it owns; None if it is none."""
    if not headers.is_grpc:
        stream.end_response(UNSUPPORTED_TYPE)
        return None
    timeout_s = headers.timeout_s
    deadline = None if timeout_s is None else handlers.loop.time() + timeout_s
    kind = TasklessCall if headers.path in handlers.taskless else TaskCall
    stream.owner = call = kind(stream, headers, peer, handlers, deadline)
    if headers.fault is not None:
        call.refuse(headers.fault)
    elif isinstance(call, TaskCall):
        call.start(call.find_and_handle)
    return call


class TaskCall(Call):
    """A call with a task, which lasts until its client has been sent everything, or has left."""

    state = HANDLING
    _handlers: Handlers
    _task: asyncio.Task[None] | None = None
    _arrived: asyncio.Future[None] | None = None

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the task, which does some work."""
        self._task = self._handlers.tasks.start(self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
            del work  # which has the response as well
            if self._stream.is_blocked:
                await self._wait_sent()
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._end(grpc.StatusCode.CANCELLED, "the server cancelled the call")
        finally:
            self._take = None  # whose owner may have this call: a cycle
            self._stop_timer()
            self._end(grpc.StatusCode.UNKNOWN, "the call has failed")

    async def find_and_handle(self) -> None:
        """Handle the call by its method."""
        handler = self._handlers.find(self._headers.path)
        if self._handlers.interceptor is not None:
            handler = await self._handlers.interceptor(self, self._headers.path, handler)
        if handler is None:
            self._end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        self._serialise = handler.response_serializer
        self._deserialise = read = handler.request_deserializer or bytes
        request: Any
        if handler.request_streaming:
            request = self._read_requests()
        else:
            data = await self._next_request()
            self._enter_requests(IGNORED)
            if data is None:
                self._end(grpc.StatusCode.INTERNAL, "the call has no request")
                return
            request = read(data)
        responses = behaviour_of(handler)(request, self)
        if handler.response_streaming:
            if hasattr(responses, "__aiter__"):
                async for response in responses:
                    await self.write(response)
                    del response
            else:
                await responses
            self._end(grpc.StatusCode.OK, "")
        else:
            self.respond(await responses)

    async def finish(self, handler: BegunUnary[Any], result: asyncio.Future[Buffer]) -> None:
        """Respond with the result of a call that had no task."""
        context: Any = self
        try:
            self.respond(await handler.respond(result, context))
        finally:
            if not result.cancelled() and (error := result.exception()) is not None:
                error.__traceback__ = None  # whose frames have the request and the result: a cycle

    def respond(self, response: Any) -> None:
        """Send the only response, and end the call."""
        data: bytes = response if self._serialise is None else self._serialise(response)
        first = b"" if self.state is RESPONDING else RESPONSE
        if self._enter(ENDED):
            last = SUCCEEDED + encoded(self._trailers) if self._trailers else SUCCEEDED
            self._stream.respond(first, prefixed(data), last)

    def _on_requests(self) -> None:
        if self._arrived is None or self._arrived.done():
            return
        if self._take is not None:
            while self._requests and not isinstance(self._requests[0], Compressed):
                if not self._take(self._requests[0]):
                    break
                self._next_arrived()
        if self._requests or self.requests_state is COMPLETE:
            complete(self._arrived)

    def _cancel_work(self) -> None:
        # A task that is cancelled before it starts keeps the exception, and that the call.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _next_request(self) -> Buffer | None:
        """Wait for the next request; None once there are no more."""
        while not self._requests:
            if self.requests_state is COMPLETE:
                if self._reader.is_within_message:
                    error = InternalError("the client has ended the call within a message")
                    await rpc.abort(self, error)
                return None
            self._arrived = self._handlers.loop.create_future()
            await self._arrived
        request = self._next_arrived()
        if not self._requests:
            self._stream.widen_window()
        if isinstance(request, Compressed):
            # Not before the handler asks for it, so that a call holds one of them at a time.
            try:
                encoding, max_bytes = self._headers.encoding, self._handlers.max_bytes
                return await asyncio.to_thread(decompress, request, encoding, max_bytes)
            except SynergaiError as error:
                await rpc.abort(self, error)
        return request

    async def _read_requests(self) -> AsyncIterator[Any]:
        while (request := await self._next_request()) is not None:
            yield self._deserialise(request)
            del request


class TasklessCall(Call):
    """A call of `BegunUnary`, which begins in the turn in which its request has arrived.

    A `TaskCall` continues it unless its response can be sent at once.
    """

    _handlers: Handlers
    _pending: PendingCall | None = None

    def _on_requests(self) -> None:
        if not self._requests or isinstance(self._requests[0], Compressed):
            if self._requests or self.requests_state is COMPLETE:
                self._hand_over(None)
            return
        self._enter(HANDLING)
        handler = self._handlers.taskless[self._headers.path]
        data = self._requests.popleft()
        self._enter_requests(IGNORED)
        context: Any = self
        try:
            request = rpc.RawRequest(data, handler.read(data))
        except DecodeError:
            self._fail(handler.malformed.error())
            return
        try:
            self._pending = handler.begin(request, context, self._respond_at_once)
        except Exception as error:  # noqa: BLE001 - which ends the call as that of any handler
            self._fail(error)
        else:
            self._pending.result.add_done_callback(self._finish)

    def _fail(self, error: Exception) -> None:
        """End a call that could not begin."""
        failed: asyncio.Future[Buffer] = self._handlers.loop.create_future()
        failed.set_exception(error)
        self._finish(failed)

    def _respond_at_once(self, response: Buffer) -> None:
        """Send the only response in the turn in which it arrives, if the client takes it now."""
        pending, self._pending = self._pending, None
        if self._stream.takes(PREFIX_BYTES + len(response)) and self._enter(ENDED):
            self._stream.respond_now(RESPONSE, prefixed(response), SUCCEEDED)
            self._stop_timer()
        elif pending is not None:
            pending.result.set_result(response)

    def _finish(self, result: asyncio.Future[Buffer]) -> None:
        self._pending = None
        if not result.cancelled():
            result.exception()  # else asyncio logs it if the client leaves before the task starts
        if self.state is HANDLING:
            self._hand_over(result)

    def _hand_over(self, result: asyncio.Future[Buffer] | None) -> None:
        """Let a call with a task respond with a result; without one, let it read the request."""
        call = TaskCall(self._stream, self._headers, self.peer, self._handlers, self._deadline)
        if result is None:
            self._reader, call._reader = call._reader, self._reader  # noqa: SLF001 - of a `Call`
            self._requests, call._requests = call._requests, self._requests  # noqa: SLF001
            if self.requests_state is COMPLETE:
                call.requests_state = COMPLETE
            call.start(call.find_and_handle)
        else:
            handler = self._handlers.taskless[self._headers.path]
            call.start(partial(call.finish, handler, result))
        self._enter(ENDED)
        self._stop_timer()
        self._stream.owner = call

    def _cancel_work(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.abandon()


def decompress(data: Compressed, encoding: str, max_bytes: int) -> bytes:
    """Return a message that was compressed with an encoding, of some bytes at most."""
    kind = _FORMATS.get(encoding)
    if kind is None:
        raise NotSupported(f"messages are compressed with {encoding!r}: use gzip")
    decompressor = zlib.decompressobj(kind)
    try:
        message = decompressor.decompress(data, max_bytes + 1)
    except zlib.error:
        raise InvalidInput("a message cannot be decompressed") from None
    if len(message) > max_bytes:
        raise too_large(len(message), max_bytes)
    if not decompressor.eof:
        raise InvalidInput("a message cannot be decompressed")
    return message
