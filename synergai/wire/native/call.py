"""A call of gRPC on a stream of a client: its states, its messages, and what is sent."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import grpc
import numpy as np

from synergai.errors import MessageTooLarge, SynergaiError
from synergai.wire.native import http2
from synergai.wire.native.flow import RESPONSE, encoded, status_fields
from synergai.wire.status import error_details, status_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from synergai.wire.memory_bounds import IncompleteRequests
    from synergai.wire.native.flow import Stream
    from synergai.wire.native.headers import CallHeaders
    from synergai.wire.request_codec import Buffer
    from synergai.wire.server_call import Metadata, Peer

MOST_CUT: Final = 64
"""Messages of a call that are cut out of its data before its handler takes them: they cost more
time and memory than their bytes."""
_PIECE_BYTES: Final = 1 << 20
_PIECE_PER_ARRIVED: Final = 16
"""Memory that a message takes at a time while it arrives, in all and for each byte of it that has
arrived: clients may announce more than they send. Where the system uses huge pages, all of it is
taken by the first byte. A message of up to 1 MiB ends up in one piece."""
_PREFIX: Final = struct.Struct(">BI")
"""What precedes a message: whether it is compressed, and its length."""
PREFIX_BYTES: Final = _PREFIX.size


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


class CallOwner(Protocol):
    """What a call needs of its server's `Handlers`."""

    loop: asyncio.AbstractEventLoop
    max_bytes: int
    incomplete: IncompleteRequests


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
        handlers: CallOwner,
        deadline: float | None,
    ) -> None:
        self.peer = peer
        self._stream = stream
        self._headers = headers
        self._handlers = handlers
        self._reader = MessageReader(handlers.max_bytes)
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


def prefix(message: Buffer) -> bytes:
    """Return what comes before a message in the data of a call."""
    return _PREFIX.pack(0, len(message))


def prefixed(message: Buffer) -> bytes:
    """Return a message as the data of a call."""
    return _PREFIX.pack(0, len(message)) + message


class Compressed(bytes):
    """A message that is still compressed: one of a few kilobytes may decompress to the limit."""

    __slots__ = ()


class MessageReader:
    """Cuts the messages out of the data of a call.

    Args:
        max_bytes: largest message.

    Attributes:
        to_come: bytes that are missing of the message whose beginning has arrived.
        uncut: data behind the messages that were returned.
    """

    to_come = 0
    _prefix = b""
    # Bytes of the last piece that have arrived.
    _filled = 0

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # Of the message whose prefix has arrived.
        self._pieces: list[memoryview] = []
        self.uncut: deque[Buffer] = deque()

    @property
    def is_within_message(self) -> bool:
        """Whether the data ends within a message or its prefix."""
        return bool(self._prefix)

    def message_buffer(self) -> memoryview | None:
        """Return memory for what comes next of a message; None for other data.

        Data that was received there is fed as the part of the message that it fills. The first data
        of one has no such memory.
        """
        return self._free_buffer() if self._pieces and not self.uncut else None

    def feed(self, data: Buffer, most: int = MOST_CUT) -> list[Buffer]:
        """Return the messages that the data completes, this many at most; `cut` returns others."""
        if self.uncut or most <= 0:
            self.uncut.append(bytes(data))
            return []
        return self._cut(data, most)

    def cut(self) -> list[Buffer]:
        """Return further messages of the data; none if it has no others."""
        messages: list[Buffer] = []
        while self.uncut and not messages:
            messages = self._cut(self.uncut.popleft(), MOST_CUT)
        return messages

    def _cut(self, data: Buffer, most: int) -> list[Buffer]:
        messages: list[Buffer] = []
        at, end = 0, len(data)
        while at < end and len(messages) < most:
            start = at + PREFIX_BYTES
            if start <= end and not self._prefix:  # whole messages need not be put together
                is_compressed, size = _PREFIX.unpack_from(data, at)
                if (stop := start + size) <= end and size <= self._max_bytes:
                    message: Buffer = bytes(data[start:stop])
                    messages.append(Compressed(message) if is_compressed else message)
                    at = stop
                    continue
            if len(self._prefix) < PREFIX_BYTES:
                taken = min(PREFIX_BYTES - len(self._prefix), end - at)
                self._prefix += data[at : at + taken]
                at += taken
                if len(self._prefix) < PREFIX_BYTES:
                    break
                self.to_come = int.from_bytes(self._prefix[1:])
                if self.to_come > self._max_bytes:
                    raise too_large(self.to_come, self._max_bytes)
            taken = min(self.to_come, end - at)
            self._add(data[at : at + taken])
            at += taken
            if not self.to_come:
                pieces = self._pieces
                message = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                messages.append(Compressed(message) if self._prefix[0] else message)
                pieces.clear()
                self._prefix = b""
        if at < end and len(messages) == most:
            self.uncut.appendleft(bytes(data[at:]))
        return messages

    def _add(self, data: Buffer) -> None:
        while data:
            free = self._free_buffer(len(data))
            size = min(len(free), len(data))
            if not (isinstance(data, memoryview) and data.obj is free.obj):
                free[:size] = data[:size]
            self._filled += size
            self.to_come -= size
            data = data[size:]

    def _free_buffer(self, at_hand: int = 0) -> memoryview:
        """Return memory for what comes next of the message that is incomplete.

        Args:
            at_hand: bytes of it that have arrived and are to be put there.
        """
        if not self._pieces or self._filled == len(self._pieces[-1]):
            size = int.from_bytes(self._prefix[1:])
            arrived = size - self.to_come
            if arrived < _PIECE_BYTES:  # the first piece grows
                self._filled = arrived
                size = min(size, _PIECE_BYTES, _PIECE_PER_ARRIVED * (arrived + at_hand))
            else:
                self._filled = 0
                size = min(self.to_come, _PIECE_BYTES)
            piece = np.empty(size, np.uint8).data
            if self._filled:
                piece[:arrived] = self._pieces.pop()
            self._pieces.append(piece)
        return self._pieces[-1][self._filled :]

    def clear(self) -> None:
        """Drop all data that is not part of a message returned."""
        self._pieces.clear()
        self.uncut.clear()


def too_large(size: int, limit: int) -> MessageTooLarge:
    """Return the error for a message beyond the limit, as grpcio says it."""
    return MessageTooLarge(f"received a message larger than max ({size} vs. {limit})")
