"""A call of gRPC on a stream of a client: its states, its requests, and what is sent."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from synergai.errors import SynergaiError
from synergai.runtime.tasks import TaskBag
from synergai.wire.limits import MAX_INCOMPLETE_BYTES
from synergai.wire.memory_bounds import IncompleteRequests
from synergai.wire.message_framing import MOST_CUT, MessageReader, prefix, prefixed
from synergai.wire.native import http2
from synergai.wire.native.headers import RESPONSE, encoded, status_fields
from synergai.wire.rpc import BegunUnary, Service
from synergai.wire.server_call import find_handler
from synergai.wire.status import error_details, status_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from synergai.wire.native.headers import CallHeaders
    from synergai.wire.native.sending import Stream
    from synergai.wire.request_codec import Buffer
    from synergai.wire.server_call import Interceptor, Metadata, Peer


class CallState(enum.IntEnum):
    """Lifecycle of a call, which never returns to an earlier state."""

    RECEIVING = 0  # a call without a task waits for its request
    HANDLING = 1  # the handler works, and nothing was sent
    RESPONDING = 2  # the response has begun
    ENDED = 3  # the status was sent, maybe behind data that waits, or the client has left


class RequestState(enum.IntEnum):
    """Lifecycle of the requests of a call; of the earlier states, only the first returns."""

    BETWEEN = 0  # whatever has begun to arrive has arrived
    PARTIAL = 1  # a request has arrived in part, which counts for `IncompleteRequests`
    COMPLETE = 2  # the client sends no more
    IGNORED = 3  # nothing is kept of what the client sends


# Aliases for the path of every call: accessing an enum member by name is a call in Python 3.11.
RECEIVING, HANDLING, RESPONDING, ENDED = CallState
BETWEEN, PARTIAL, COMPLETE, IGNORED = RequestState


_RECEIVED_BYTES: Final = 64 << 10


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


class Call:
    """A call, as its handler sees it (`rpc.ServerCall`), and the owner of its stream.

    Args:
        handlers: the server's.
        deadline: instant on the clock of the event loop; None if there is none.

    Attributes:
        peer: the client.
        state: that of the call.
        requests_state: that of its requests.
    """

    state = RECEIVING
    requests_state = BETWEEN
    _take: Callable[[Buffer], bool] | None = None
    _was_sent: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _serialise: Callable[[Any], bytes] | None = None
    _trailers: Metadata = ()

    def __init__(
        self,
        stream: Stream,
        headers: CallHeaders,
        peer: Peer,
        handlers: Handlers,
        deadline: float | None,
    ) -> None:
        self.peer = peer
        self._stream = stream
        self._headers = headers
        self._handlers = handlers
        self._reader = MessageReader(handlers.max_bytes, headers.encoding)
        self._requests: deque[Buffer] = deque()
        self._deserialise: Callable[[Buffer], Any] = bytes
        self._deadline = deadline
        if deadline is not None:
            self._timer = handlers.loop.call_at(deadline, self._expire)

    def _enter(self, state: CallState) -> bool:
        """Enter a later state; return False in this state, or a later one."""
        if state <= self.state:
            return False
        self.state = state
        if state is ENDED and self.requests_state is not IGNORED:
            self._enter_requests(IGNORED)
        return True

    def _enter_requests(self, state: RequestState) -> bool:
        """Do the same with a state of the requests, but what is partial may be completed."""
        before = self.requests_state
        if state <= before and (before is not PARTIAL or state is PARTIAL):
            return False
        if before is PARTIAL:
            self._handlers.incomplete.remove(self.peer.host, self.refuse)
        self.requests_state = state
        if state is IGNORED:
            self._requests.clear()
            self._reader.clear()
        return True

    # --- the stream ---------------------------------------------------------------------------

    def message_buffer(self) -> memoryview | None:
        """Return memory for what comes next of a message; None if the reader has none."""
        return None if self.requests_state is IGNORED else self._reader.message_buffer()

    def receive_data(self, data: Buffer) -> None:
        """Take data of the client."""
        if self.requests_state is IGNORED:
            return
        try:
            arrived = self._reader.feed(data, MOST_CUT - len(self._requests))
        except SynergaiError as error:
            self.refuse(error)
            return
        if arrived:
            self._requests += arrived
            if self.requests_state is PARTIAL:
                self._enter_requests(BETWEEN)
        if self._reader.to_come:
            self._enter_requests(PARTIAL)
            self._handlers.incomplete.add(self.peer.host, self.refuse, len(data))
            if self.requests_state is IGNORED:  # refused, as there are too many
                return
        self._on_requests()
        if self.requests_state is IGNORED or self._requests:
            return
        if not 0 < self._reader.to_come <= self._stream.room:
            self._stream.widen_window()

    def end_requests(self) -> None:
        """Note that the client sends no more data."""
        if self._enter_requests(COMPLETE):
            self._on_requests()

    def sent(self) -> None:
        """Note that all data has been sent."""
        complete(self._was_sent)

    def lost(self) -> None:
        """Note that the client has cancelled the call, or left."""
        self._enter(ENDED)
        self._cancel()
        complete(self._was_sent)

    def _on_requests(self) -> None:
        """Go on, as requests have arrived, or the client sends no more."""
        raise NotImplementedError

    def _cancel_work(self) -> None:
        """Cancel the handler, which may not have started."""
        raise NotImplementedError

    def _next_arrived(self) -> Buffer:
        """Return the first request, and cut others out of the data if it was the last."""
        request = self._requests.popleft()
        if self._reader.uncut and not self._requests:
            try:
                self._requests += self._reader.cut()
            except SynergaiError as error:
                self.refuse(error)
        return request

    # --- ends ---------------------------------------------------------------------------------

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        """End the call with a status, behind its responses; do nothing if it has ended."""
        has_begun = self.state is RESPONDING
        if not self._enter(ENDED):
            return
        block = status_fields(code, details, self._trailers)
        self._stream.end_response(block if has_begun else RESPONSE + block)

    def refuse(self, error: SynergaiError) -> None:
        """End the call because of its fields or requests."""
        self._end(status_code(error), error_details(error))
        self._cancel()

    def _expire(self) -> None:
        """End the call, as its deadline has passed."""
        self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        if self._stream.is_blocked:
            self._stream.reset(http2.CANCEL)
        self._cancel()

    def _cancel(self) -> None:
        self._enter_requests(IGNORED)
        self._stop_timer()
        self._cancel_work()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _wait_sent(self) -> None:
        """Wait until the client has been sent everything, for which several tasks may wait."""
        if self._was_sent is None or self._was_sent.done():
            self._was_sent = self._handlers.loop.create_future()
        await asyncio.shield(self._was_sent)

    # --- rpc.ServerCall -------------------------------------------------------------------------

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Begin the response, unless it has begun."""
        if self._enter(RESPONDING):
            self._stream.begin_response(RESPONSE + encoded(metadata))

    async def write(self, message: Any) -> None:
        """Send a response, and wait until the client takes it."""
        data: bytes = message if self._serialise is None else self._serialise(message)
        if self.state is HANDLING:
            await self.send_initial_metadata(())
        if self.state is not RESPONDING:  # the task is about to be cancelled
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
        can_write = self.state is RESPONDING and len(message) < http2.MAX_FRAME
        return can_write and self._stream.send_at_once(prefixed(message))

    def take_at_once(self, take: Callable[[Any], bool]) -> None:
        """Take the requests that the handler of a stream waits for as they arrive.

        This spares them a turn of the event loop. The handler gets those for which `take` returns
        False, and those that are compressed.
        """
        run, read = copy_context().run, self._deserialise
        self._take = lambda data: run(take, read(data))

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """Set the metadata of the status with which the call ends."""
        self._trailers = tuple(metadata)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with a status, and wait until the client has been sent it."""
        self._trailers = tuple(trailing_metadata) or self._trailers
        self._end(code, details)
        if self._stream.is_blocked:
            await self._wait_sent()
        raise grpc.aio.AbortError("Locally aborted.")

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the client."""
        return self._headers.metadata

    @property
    def unread_s(self) -> float:
        """Time for which responses have waited of which the client has taken nothing."""
        return self._stream.blocked_s

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None if there is none."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._handlers.loop.time())


def complete(future: asyncio.Future[None] | None) -> None:
    """Set the result of a future, unless there is none, or it has one."""
    if future is not None and not future.done():
        future.set_result(None)
