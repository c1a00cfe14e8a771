"""A call of gRPC: its handler, and what the handler knows of it and sends."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from synergai.errors import SynergaiError
from synergai.protocol.native import http2
from synergai.protocol.native.headers import RESPONSE, SUCCEEDED, UNSUPPORTED_TYPE, status_fields
from synergai.protocol.native.messages import (
    MOST_CUT,
    PREFIX_BYTES,
    Compressed,
    MessageReader,
    prefix,
    prefixed,
)
from synergai.protocol.rpc import BegunUnary
from synergai.protocol.status import error_details, status_code

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from synergai.protocol.native.handlers import Handlers
    from synergai.protocol.native.headers import CallHeaders, Metadata
    from synergai.protocol.native.sending import Stream
    from synergai.protocol.peer import Peer
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.rpc import PendingCall

_OK: Final = grpc.StatusCode.OK


class Call:
    """A call on a stream, and the context of its handler.

    It has those methods of `grpc.aio.ServicerContext` that the handlers of this project use. The
    task of a call lasts until its client has been sent everything, or has left. A `BegunUnary` call
    gets none before its result is there, and none at all if that can be sent at once.

    Args:
        handlers: the server's.
    """

    def __init__(
        self, stream: Stream, headers: CallHeaders, client: Peer, handlers: Handlers
    ) -> None:
        self._stream = stream
        self._headers = headers
        self.client = client
        self._handlers = handlers
        self._reader = MessageReader(handlers.max_bytes, headers.encoding)
        self._requests: deque[Buffer] = deque()
        self._take: Callable[[Buffer], bool] | None = None
        self._has_all_requests = False
        self._ignores_data = False
        # Whether the handlers count the request whose beginning has arrived.
        self._is_counted = False
        self._arrived: asyncio.Future[None] | None = None
        self._was_sent: asyncio.Future[None] | None = None
        self._loop = handlers.loop
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        if headers.timeout_s is not None:
            self._deadline = self._loop.time() + headers.timeout_s
            self._timer = self._loop.call_at(self._deadline, self._expire)
        self._serialise: Callable[[Any], bytes] | None = None
        self._deserialise: Callable[[Buffer], Any] = bytes
        self._begins: BegunUnary[Any] | None = None
        self._begun: PendingCall | None = None
        self._has_begun = self._has_ended = False
        self._status: tuple[grpc.StatusCode, str, Metadata] = (_OK, "", ())

    def start(self) -> None:
        """Handle the call."""
        handler = self._handlers.find(self._headers.path)
        if (
            isinstance(handler, BegunUnary)
            and self._handlers.interceptor is None
            and self._headers.is_grpc
            and self._headers.fault is None
        ):
            self._begins = handler
        else:
            self._start(self._find_and_handle)

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
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
            if self._is_counted:
                self._forget_incomplete()
            if self._timer is not None:
                self._timer.cancel()
            self._end(grpc.StatusCode.UNKNOWN, "the call has failed")

    async def _find_and_handle(self) -> None:
        if not self._headers.is_grpc:
            self._has_ended = True
            self._stream.end(UNSUPPORTED_TYPE)
            return
        if (fault := self._headers.fault) is not None:
            self._end(status_code(fault), error_details(fault))
            return
        handler = self._handlers.find(self._headers.path)
        if self._handlers.interceptor is not None:
            handler = await self._handlers.interceptor(self, self._headers.path, handler)
        if handler is None:
            self._end(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        await self._handle(handler)

    async def _handle(self, handler: Any) -> None:
        self._serialise = handler.response_serializer
        self._deserialise = read = handler.request_deserializer or bytes
        request: Any
        if handler.request_streaming:
            request = self._read_requests()
        else:
            data = await self._next_request()
            self._ignore_data()
            if data is None:
                self._end(grpc.StatusCode.INTERNAL, "the call has no request")
                return
            request = read(data)
        if handler.response_streaming:
            responses = (handler.stream_stream or handler.unary_stream)(request, self)
            if hasattr(responses, "__aiter__"):
                async for response in responses:
                    await self.write(response)
                    del response
            else:
                await responses
            self._end(_OK, "")
        else:
            self._respond(await (handler.stream_unary or handler.unary_unary)(request, self))

    # --- calls without a task -------------------------------------------------------------------

    def _begin(self, handler: BegunUnary[Any]) -> None:
        """Begin the call in the turn of the event loop in which its request has arrived."""
        self._begins = None
        if not self._requests or isinstance(self._requests[0], Compressed):
            self._start(self._find_and_handle)
            return
        request = handler.request_deserializer(self._requests.popleft())
        self._ignore_data()
        context: Any = self
        try:
            self._begun = handler.begin(request, context, self._respond_at_once)
        except Exception as error:  # noqa: BLE001 - which ends the call as that of any handler
            self._finish(handler, _failed(error))
        else:
            self._begun.result.add_done_callback(partial(self._finish, handler))

    def _respond_at_once(self, response: Buffer) -> None:
        """Send the only response in the turn in which it arrives, if the client takes it now."""
        begun, self._begun = self._begun, None
        if self._stream.takes(PREFIX_BYTES + len(response)):
            self._has_ended = True
            self._stream.respond_at_once(RESPONSE, prefixed(response), SUCCEEDED)
            if self._timer is not None:
                self._timer.cancel()
        elif begun is not None:
            begun.result.set_result(response)

    def _finish(self, handler: BegunUnary[Any], result: asyncio.Future[Buffer]) -> None:
        """Let a task respond with a result."""
        self._begun = None
        if not result.cancelled():
            result.exception()  # else asyncio logs it if the client leaves before the task starts
        if not self._has_ended:
            self._start(partial(self._respond_with, handler, result))

    async def _respond_with(self, handler: BegunUnary[Any], result: asyncio.Future[Buffer]) -> None:
        try:
            self._respond(await handler.respond(result, self))
        finally:
            if not result.cancelled() and (error := result.exception()) is not None:
                error.__traceback__ = None  # whose frames have the request and the result: a cycle

    # --- the stream ---------------------------------------------------------------------------

    def place(self) -> memoryview | None:
        """Return memory for what comes next of a message; None if the reader has none."""
        if self._has_ended or self._ignores_data:
            return None
        return self._reader.place()

    def receive(self, data: Buffer) -> None:
        """Take data of the client."""
        if self._has_ended or self._ignores_data:
            return
        try:
            arrived = self._reader.feed(data, MOST_CUT - len(self._requests))
        except SynergaiError as error:
            self._refuse(error)
            return
        if arrived:
            self._requests += arrived
            if self._is_counted:
                self._forget_incomplete()
        if self._reader.to_come:
            self._is_counted = True
            self._handlers.incomplete.add(self.client.host, self._refuse, len(data))
        if self._begins is not None and self._requests:
            self._begin(self._begins)
            return
        if self._take is not None and _is_pending(self._arrived):
            while self._requests and not isinstance(self._requests[0], Compressed):
                if not self._take(self._requests[0]):
                    break
                self._take_off()
        if self._requests:
            _complete(self._arrived)
        elif not 0 < self._reader.to_come <= self._stream.room:
            self._stream.take()

    def _take_off(self) -> Buffer:
        """Return the first request, and cut others out of the data if it was the last."""
        request = self._requests.popleft()
        if not self._requests:
            try:
                self._requests += self._reader.cut()
            except SynergaiError as error:
                self._refuse(error)
        return request

    def _drop_data(self) -> None:
        """Keep nothing of what the client has sent."""
        self._requests.clear()
        self._reader.clear()
        if self._is_counted:
            self._forget_incomplete()

    def _forget_incomplete(self) -> None:
        self._is_counted = False
        self._handlers.incomplete.remove(self.client.host, self._refuse)

    def _refuse(self, error: SynergaiError) -> None:
        """End the call because of a request that is too large, or of too many incomplete ones."""
        self._end(status_code(error), error_details(error))
        self._cancel()

    def end_requests(self) -> None:
        """Note that the client sends no more data."""
        self._has_all_requests = True
        if self._begins is not None and not self._has_ended:
            self._begin(self._begins)
        elif self._arrived is not None:
            _complete(self._arrived)

    def sent(self) -> None:
        """Note that all data has been sent."""
        _complete(self._was_sent)

    def lost(self) -> None:
        """Note that the client has cancelled the call, or left."""
        self._has_ended = True
        self._cancel()
        _complete(self._was_sent)

    def _expire(self) -> None:
        """End the call, as its deadline has passed."""
        self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self._stream.is_blocked:
            self._stream.reset(http2.CANCEL)
        self._cancel()

    def _cancel(self) -> None:
        """Cancel the handler, which may not have started."""
        self._drop_data()
        # A task that is cancelled before it starts keeps the exception, and that the call.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.abandon()
        if self._timer is not None:
            self._timer.cancel()

    # --- requests -----------------------------------------------------------------------------

    async def _next_request(self) -> Buffer | None:
        """Wait for the next request; None once there are no more."""
        while not self._requests:
            if self._has_all_requests:
                if self._reader.is_within_message:
                    text = "the client has ended the call within a message"
                    await self.abort(grpc.StatusCode.INTERNAL, text)
                return None
            self._arrived = self._loop.create_future()
            await self._arrived
        request = self._take_off()
        if not self._requests:
            self._stream.take()
        if isinstance(request, Compressed):
            # Not before the handler asks for it, so that a call holds one of them at a time.
            try:
                return await asyncio.to_thread(self._reader.decompress, request)
            except SynergaiError as error:
                await self.abort(status_code(error), error_details(error))
        return request

    def _ignore_data(self) -> None:
        """Keep nothing that the client of a unary call sends behind its request."""
        self._ignores_data = True
        self._drop_data()

    async def _read_requests(self) -> AsyncIterator[Any]:
        while (request := await self._next_request()) is not None:
            yield self._deserialise(request)
            del request

    def take_at_once(self, take: Callable[[Any], bool]) -> None:
        """Take the requests that the handler of a stream waits for as they arrive.

        This spares them a turn of the event loop. The handler gets those for which `take` returns
        False, and those that are compressed.
        """
        run, read = copy_context().run, self._deserialise
        self._take = lambda data: run(take, read(data))

    # --- responses ----------------------------------------------------------------------------

    def _serialised(self, response: Any) -> bytes:
        data: bytes = response if self._serialise is None else self._serialise(response)
        return data

    def _respond(self, response: Any) -> None:
        """Send the only response, and end the call."""
        data = prefixed(self._serialised(response))
        if not self._has_ended:
            self._has_ended = True
            self._stream.respond(b"" if self._has_begun else RESPONSE, data, SUCCEEDED)

    def _end(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        """End the call with a status, behind its responses; do nothing if it has ended."""
        if self._has_ended:
            return
        self._has_ended = True
        self._status = code, details, metadata
        block = SUCCEEDED if code is _OK else status_fields(code, details, metadata)
        self._stream.end(block if self._has_begun else RESPONSE + block)

    async def _wait_sent(self) -> None:
        """Wait until the client has been sent everything, for which several tasks may wait."""
        if self._was_sent is None or self._was_sent.done():
            self._was_sent = self._loop.create_future()
        await asyncio.shield(self._was_sent)

    # --- grpc.aio.ServicerContext ---------------------------------------------------------------

    async def write(self, message: Any) -> None:
        """Send a response, and wait until the client takes it."""
        data = self._serialised(message)
        await self.send_initial_metadata(())
        if self._has_ended:  # the task is about to be cancelled
            return
        if len(data) > http2.MAX_FRAME:  # not copied, as it may wait for long
            self._stream.send(prefix(data))
            self._stream.send(data)
        else:
            self._stream.send(prefixed(data))
        if self._stream.is_blocked:
            await self._wait_sent()

    def write_at_once(self, message: bytes) -> bool:
        """Send a response if the client takes it now; return whether it does."""
        can_write = self._has_begun and not self._has_ended and len(message) < http2.MAX_FRAME
        return can_write and self._stream.send_at_once(prefixed(message))

    async def send_initial_metadata(self, _metadata: Metadata) -> None:
        """Begin the response, without metadata."""
        if not (self._has_begun or self._has_ended):
            self._has_begun = True
            self._stream.begin(RESPONSE)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with a status, and wait until the client has been sent it."""
        self._end(code, details, tuple(trailing_metadata))
        if self._stream.is_blocked:
            await self._wait_sent()
        raise grpc.aio.AbortError("Locally aborted.")

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the client."""
        return self._headers.metadata

    def trailing_metadata(self) -> Metadata:
        """Return the metadata of the status."""
        return self._status[2]

    def code(self) -> grpc.StatusCode:
        """Return the code of the status."""
        return self._status[0]

    def details(self) -> str:
        """Return the message of the status."""
        return self._status[1]

    @property
    def unread_s(self) -> float:
        """Time for which responses have waited of which the client has taken nothing."""
        return self._stream.blocked_s

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None if there is none."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())


def _failed(error: Exception) -> asyncio.Future[Buffer]:
    result = asyncio.get_running_loop().create_future()
    result.set_exception(error)
    return result


def _is_pending(future: asyncio.Future[None] | None) -> bool:
    return future is not None and not future.done()


def _complete(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
