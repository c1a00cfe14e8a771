"""The two kinds of calls: with a task of their own, and without one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from synergai.errors import InternalError, SynergaiError
from synergai.wire import rpc
from synergai.wire.message_framing import PREFIX_BYTES, Compressed, prefixed
from synergai.wire.native.call import COMPLETE, ENDED, HANDLING, IGNORED, RESPONDING, Call, complete
from synergai.wire.native.headers import RESPONSE, SUCCEEDED, UNSUPPORTED_TYPE, encoded
from synergai.wire.server_call import behaviour_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from synergai.wire.native.call import Handlers
    from synergai.wire.native.headers import CallHeaders
    from synergai.wire.native.sending import Stream
    from synergai.wire.request_codec import Buffer
    from synergai.wire.rpc import BegunUnary, PendingCall
    from synergai.wire.server_call import Peer


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
                return await asyncio.to_thread(self._reader.decompress, request)
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

    _pending: PendingCall | None = None

    def _on_requests(self) -> None:
        if not self._requests or isinstance(self._requests[0], Compressed):
            if self._requests or self.requests_state is COMPLETE:
                self._hand_over(None)
            return
        self._enter(HANDLING)
        handler = self._handlers.taskless[self._headers.path]
        request = handler.request_deserializer(self._requests.popleft())
        self._enter_requests(IGNORED)
        context: Any = self
        try:
            self._pending = handler.begin(request, context, self._respond_at_once)
        except Exception as error:  # noqa: BLE001 - which ends the call as that of any handler
            failed: asyncio.Future[Buffer] = self._handlers.loop.create_future()
            failed.set_exception(error)
            self._finish(failed)
        else:
            self._pending.result.add_done_callback(self._finish)

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
