"""The server's side of HTTP/2 on one connection."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from synergai.errors import InvalidInput
from synergai.protocol.limits import MAX_CALLS_PER_CONNECTION
from synergai.protocol.native.headers import NO_TABLE, HeaderDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.protocol.native.headers import CallHeaders
    from synergai.protocol.request_codec import Buffer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME: Final = 16384
"""Bytes of a frame after its header, but for data of clients."""
MAX_DATA_FRAME: Final = 1 << 20
"""The same for data of clients, unless it is padded, which no client of gRPC does: what comes in
one frame is received where its message is put together."""
STREAM_WINDOW: Final = 1 << 20
"""Bytes of a call that its handler has not read yet, beyond a message that is incomplete."""
_CONNECTION_WINDOW: Final = 1 << 30
"""Of all calls: what is to bound them is the window of each."""
_ACKNOWLEDGE_S: Final = 1.0
"""Interval at which data that arrives slowly is acknowledged. Clients ping a server that sends
nothing, and the pings wait behind their data."""
_MAX_LATE: Final = MAX_CALLS_PER_CONNECTION * STREAM_WINDOW
"""Data for calls that have just ended: as much as a client sends before it can know that."""
_DEFAULT_WINDOW: Final = 65_535
_MAX_WINDOW: Final = (1 << 31) - 1
_WHOLE_BYTES: Final = 1024
"""Frames of data up to this size are handled as a whole."""
_LEAST_PLACED: Final = 32 << 10
"""Bytes of a frame from which on they are received where their message is put together."""
_MOST_GATHERED: Final = 64 << 10
"""Bytes of frames beyond which they are sent before the end of the turn."""
_HEADER: Final = 9
"""Bytes of the header of a frame."""
_DATA, _HEADERS, _RST_STREAM, _SETTINGS = 0, 1, 3, 4
_PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 5, 6, 7, 8, 9
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED, _WITH_PRIORITY = 0x4, 0x8, 0x20
_NO_ERROR, _PROTOCOL_ERROR, _FLOW_CONTROL_ERROR, _STREAM_CLOSED = 0, 1, 3, 5
_REFUSED_STREAM, CANCEL = 7, 8
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = 3, 4, 5, 6
_FRAME: Final = struct.Struct(">HBBBI")
"""Length, its last byte apart, kind, flags and stream."""
_SETTING: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">I")


def _header(size: int, kind: int, flags: int, stream: int) -> bytes:
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """Return a frame."""
    return b"".join((_header(len(payload), kind, flags, stream), payload))


_PREFACE_OF_SERVER: Final = frame(
    _SETTINGS,
    0,
    0,
    _SETTING.pack(_MAX_CONCURRENT_STREAMS, MAX_CALLS_PER_CONNECTION)
    + _SETTING.pack(_INITIAL_WINDOW_SIZE, STREAM_WINDOW)
    + _SETTING.pack(_MAX_FRAME_SIZE, MAX_DATA_FRAME)
    + _SETTING.pack(_MAX_HEADER_LIST_SIZE, MAX_FRAME),
) + frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_CONNECTION_WINDOW - _DEFAULT_WINDOW))
GOAWAY: Final = frame(_GOAWAY, 0, 0, _NUMBER.pack(_MAX_WINDOW) + bytes(4))
"""The frame that asks a client to begin no further calls on its connection."""
_END_SOON: Final = GOAWAY + frame(_PING, 0, 0, b"synergai")
"""The same, and a ping, which the client acknowledges behind the calls that it had begun before."""


class StreamOwner(Protocol):
    """What happens on a stream."""

    def place(self) -> memoryview | None:
        """Return memory for data that is to be received there; None for any other."""

    def receive(self, data: Buffer) -> None:
        """Take data of the client, but keep no view of it; `Stream.take` lets it send more."""

    def end_requests(self) -> None:
        """Note that the client sends no more data."""

    def sent(self) -> None:
        """Note that all data has been sent that was blocked."""

    def lost(self) -> None:
        """Note that the client has reset the stream, or left."""


class Stream:
    """A stream of a client, on which the server sends as much as the client takes.

    Attributes:
        owner: what happens on it; None before it is accepted, and once it has ended.
        window: bytes that the client takes.
        room: bytes that the client may send.
        is_open: whether the client may send more.
    """

    __slots__ = (
        "_blocked",
        "_last_fields",
        "_number",
        "_session",
        "_taken_at",
        "is_open",
        "owner",
        "room",
        "window",
    )

    def __init__(self, session: NativeSession, number: int, window: int) -> None:
        self.owner: StreamOwner | None = None
        self.window = window
        self.room = STREAM_WINDOW
        self.is_open = True
        self._session = session
        self._number = number
        self._blocked: deque[memoryview] = deque()
        # When the client last took some of it.
        self._taken_at = 0.0
        self._last_fields = b""

    @property
    def is_blocked(self) -> bool:
        """Whether data waits until the client takes it."""
        return bool(self._blocked)

    @property
    def blocked_s(self) -> float:
        """Time for which data has waited of which the client has taken nothing; 0 if none waits."""
        return time.monotonic() - self._taken_at if self._blocked else 0.0

    def takes(self, size: int) -> bool:
        """Return whether data can be sent now in one frame."""
        session = self._session
        return (
            size <= MAX_FRAME
            and size <= self.window
            and size <= session.window
            and session.writable
            and not self._blocked
        )

    def begin(self, fields: bytes) -> None:
        """Send the fields that begin a response."""
        self._session.send(self._begin(fields))

    def send_at_once(self, data: bytes) -> bool:
        """Send data if the client takes it now; return whether it does."""
        session, size = self._session, len(data)
        if not self.takes(size):
            return False
        self.window -= size
        session.window -= size
        session.send(frame(_DATA, 0, self._number, data))
        return True

    def send(self, data: bytes) -> None:
        """Send data, or keep it until the client takes it."""
        if not self.send_at_once(data):
            if not self._blocked:
                self._taken_at = time.monotonic()
            self._blocked.append(memoryview(data))
            self._session.unblock(self)

    def end(self, fields: bytes) -> None:
        """End the stream with fields, behind all data."""
        if self._blocked:
            self._last_fields = fields
        else:
            self._session.forget(self._number)
            self._session.send(self._end(fields))

    def respond(self, first: bytes, data: bytes, last: bytes) -> None:
        """Send a response and end the stream.

        Args:
            first: the fields that begin it; empty if they were sent.
            last: the fields that end it.
        """
        if self.takes(len(data)):
            self.respond_at_once(first, data, last)
        else:
            if first:
                self.begin(first)
            self.send(data)
            self.end(last)

    def respond_at_once(self, first: bytes, data: bytes, last: bytes) -> None:
        """Do the same with data that the client `takes` now, in frames that are sent together."""
        session, number, size = self._session, self._number, len(data)
        session.window -= size
        session.forget(number)
        begin: tuple[bytes, ...] = ()
        if first:
            block = session.block(first)
            begin = _header(len(block), _HEADERS, _END_HEADERS, number), block
        end = _header(len(last), _HEADERS, _END_HEADERS | _END_STREAM, number), last
        rest = self._reset_of_rest() if self.is_open else b""
        session.gather(b"".join((*begin, _header(size, _DATA, 0, number), data, *end, rest)))

    def reset(self, code: int) -> None:
        """End the stream at once; what was blocked is not sent."""
        self._blocked.clear()
        self._session.forget(self._number)
        self._session.send(frame(_RST_STREAM, 0, self._number, _NUMBER.pack(code)))

    def take(self) -> int:
        """Let the client send more, as what it has sent is being read, unless it has ended.

        Return how many bytes more.
        """
        if self.owner is None or not self.is_open or self.room >= STREAM_WINDOW // 2:
            return 0
        more = STREAM_WINDOW - self.room
        self.room = STREAM_WINDOW
        self._session.send(frame(_WINDOW_UPDATE, 0, self._number, _NUMBER.pack(more)))
        return more

    def unblock(self) -> None:
        """Send of what is blocked as much as the client takes."""
        session = self._session
        while self._blocked and session.writable:
            data = self._blocked[0]
            size = min(len(data), MAX_FRAME, self.window, session.window)
            if size <= 0:
                return
            self.window -= size
            session.window -= size
            session.send(frame(_DATA, 0, self._number, data[:size]))
            self._taken_at = time.monotonic()
            if size < len(data):
                self._blocked[0] = data[size:]
            else:
                self._blocked.popleft()
        if self._blocked:
            return
        owner = self.owner
        if self._last_fields:
            self.end(self._last_fields)
        if owner is not None:
            owner.sent()

    def _begin(self, fields: bytes) -> bytes:
        """Return the frame that begins a response."""
        return frame(_HEADERS, _END_HEADERS, self._number, self._session.block(fields))

    def _end(self, fields: bytes) -> bytes:
        """Return the frames that end the stream."""
        block = self._session.block(fields)
        last = frame(_HEADERS, _END_HEADERS | _END_STREAM, self._number, block)
        return last + self._reset_of_rest() if self.is_open else last

    def _reset_of_rest(self) -> bytes:
        """Return the frame that says that the client need not send the rest."""
        return frame(_RST_STREAM, 0, self._number, _NUMBER.pack(_NO_ERROR))


class NativeSession:
    """The calls of one connection.

    Args:
        send: sends bytes to the client.
        accept: sets the owner of a stream that the client has opened.
        count: counts a frame of the client, of a kind and size.

    Attributes:
        window: bytes that the client takes on all streams together.
        writable: whether the connection takes data.
        idle_since: when the last call ended, by the monotonic clock; None during a call.
        between_frames: whether the first frames were sent, so that others can be.
        data_to_come: bytes that are missing of a frame of data.
        begun: calls that the client began in what was received last.
        held: whether another call followed them.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        accept: Callable[[Stream, CallHeaders], None],
        count: Callable[[int, int], None],
    ) -> None:
        self._write = send
        self._count = count
        self.window = _DEFAULT_WINDOW
        self.writable = True
        self.idle_since: float | None = time.monotonic()
        self.between_frames = False
        self._accept = accept
        self._room = _CONNECTION_WINDOW
        self._acknowledged_at = 0.0
        self._window_of_streams = _DEFAULT_WINDOW
        self._headers = HeaderDecoder()
        self._of_first_block = NO_TABLE
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._blocked: dict[Stream, None] = {}
        self._is_widened = False
        # Bytes that the client may send for calls that have just ended.
        self._late_room = 0
        self._preface = PREFACE
        self.begun = 0
        self.held = False
        # Number and flags of the frame of data that is being received.
        self._data_frame = (0, 0)
        self.data_to_come = 0
        self._pings = 0
        self._loop = asyncio.get_running_loop()
        self._gathers = False
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    @property
    def ended(self) -> bool:
        """Whether all calls have ended, and the client has received all pings."""
        return self.between_frames and not self._streams and self._pings <= 0 and not self._gathered

    def end_soon(self) -> bytes:
        """Return frames that ask the client to begin no further calls."""
        self._pings += 1
        return _END_SOON

    def close(self) -> None:
        """End all calls: the client has left. Idempotent."""
        self._write = _drop
        self._blocked.clear()
        for number in tuple(self._streams):
            self._lose(number)

    def send(self, data: bytes) -> None:
        """Send frames.

        The first ones in a turn of the event loop are sent at once, as there may be no others. What
        follows is gathered to the end of the turn: sending costs more than most frames.
        """
        if self._gathers:
            self.gather(data)
        else:
            self._send_at_end_of_turn()
            self._write(data)

    def gather(self, data: bytes) -> None:
        """Send frames at the end of the turn, as there may be others."""
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes > _MOST_GATHERED:
            self._write_gathered()
        elif not self._gathers:
            self._send_at_end_of_turn()

    def _send_at_end_of_turn(self) -> None:
        self._gathers = True
        self._loop.call_soon(self._send_gathered)

    def block(self, fields: bytes) -> bytes:
        """Return fields as the next header block of the connection."""
        first, self._of_first_block = self._of_first_block, b""
        return first + fields

    def _send_gathered(self) -> None:
        self._gathers = False
        if self._gathered:
            self._write_gathered()

    def _write_gathered(self) -> None:
        data = b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        self._write(data)

    def resume(self) -> None:
        """Send what waited, as the connection takes data again."""
        self.writable = True
        self._send_blocked()

    def unblock(self, stream: Stream) -> None:
        """Send what is blocked on a stream as soon as the client takes it."""
        self._blocked[stream] = None
        self._send_of(stream)

    def forget(self, number: int) -> None:
        """Remove a stream that has ended."""
        if (stream := self._streams.pop(number, None)) is not None:
            if stream.is_open:
                self._late_room = min(self._late_room + max(0, stream.room), _MAX_LATE)
            if stream in self._blocked:
                del self._blocked[stream]
            stream.owner = None  # which has the stream: a cycle
        if not self._streams:
            self.idle_since = time.monotonic()

    def _lose(self, number: int) -> None:
        """Remove a stream that the client has ended."""
        stream = self._streams.get(number)
        owner = None if stream is None else stream.owner
        self.forget(number)
        if owner is not None:
            owner.lost()

    def _break(self, number: int, code: int) -> None:
        """End a call whose client broke the protocol; others continue (RFC 9113, 5.4.2)."""
        stream = self._streams[number]
        owner = stream.owner
        stream.reset(code)
        if owner is not None:
            owner.lost()

    def _send_blocked(self) -> None:
        for stream in tuple(self._blocked):
            if not self.window:
                break
            self._send_of(stream)

    def _send_of(self, stream: Stream) -> None:
        stream.unblock()
        if not stream.is_blocked:
            self._blocked.pop(stream, None)

    # --- frames -----------------------------------------------------------------------------

    def receive(self, data: bytes, calls: int) -> int:
        """Handle bytes of the client, with this many calls at most.

        Args:
            data: the bytes, which begin with those that were not handled before.

        Returns:
            How many bytes were handled: up to the next call beyond `calls`, or the beginning of a
            frame that is incomplete.

        Raises:
            InvalidInput: they break the protocol.
        """
        self.begun, self.held = 0, False
        at, end = self._receive_preface(data) if self._preface else 0, len(data)
        while not self._preface:
            if self.data_to_come:
                stop = min(at + self.data_to_come, end)
                if stop == at:
                    break
                self.receive_part(memoryview(data)[at:stop])
                at = stop
            if end - at < _HEADER:
                break
            high, low, kind, flags, number = _FRAME.unpack_from(data, at)
            size = high << 8 | low
            may_be_large = kind == _DATA and not flags & _PADDED
            if size > (MAX_DATA_FRAME if may_be_large else MAX_FRAME):
                raise InvalidInput(f"a frame of {size:,} bytes")
            start, stop = at + _HEADER, at + _HEADER + size
            number &= 0x7FFFFFFF
            if may_be_large and size > _WHOLE_BYTES:
                self._data_frame, self.data_to_come = (number, flags), size
                at = start
                continue
            if stop > end:
                break
            if kind == _HEADERS:
                if self.begun == calls:
                    self.held = True
                    break
                self.begun += 1
            self._count(kind, size)
            at = stop
            payload = data[start:stop]
            if kind == _DATA:
                self._receive_data(number, flags, payload)
            elif kind == _HEADERS:
                self._receive_headers(number, flags, payload)
            elif kind == _WINDOW_UPDATE:
                self._widen(number, payload)
            elif kind == _PING:
                self._receive_ping(flags, payload)
            elif kind == _RST_STREAM:
                self._reset(number, payload)
            elif kind == _SETTINGS:
                self._apply_settings(flags, payload)
            elif kind in (_PUSH_PROMISE, _CONTINUATION):
                raise InvalidInput("an unexpected frame")
        if self._is_widened:  # once, as clients may widen windows by a byte at a time
            self._is_widened = False
            self._send_blocked()
        return at

    def _receive_preface(self, data: bytes) -> int:
        """Return where the frames begin."""
        received = data[: len(self._preface)]
        if not self._preface.startswith(received):
            raise InvalidInput("no HTTP/2")
        self._preface = self._preface[len(received) :]
        if not self._preface:
            self.send(_PREFACE_OF_SERVER)
            self.between_frames = True
        return len(received)

    def place(self) -> memoryview | None:
        """Return memory for what the client sends next, a part of a frame; None for other data."""
        if self.data_to_come < _LEAST_PLACED:
            return None
        stream = self._streams.get(self._data_frame[0])
        if stream is None or stream.owner is None:
            return None
        place = stream.owner.place()
        return None if place is None else place[: self.data_to_come - 1]

    def receive_part(self, data: memoryview) -> None:
        """Handle the next part of a frame of data, such as one that was received at its place."""
        self.data_to_come -= len(data)
        number, flags = self._data_frame
        if self.data_to_come:
            flags &= ~_END_STREAM
        self._receive_data(number, flags, data)
        if self.data_to_come and time.monotonic() - self._acknowledged_at > _ACKNOWLEDGE_S:
            self._acknowledge()

    def _receive_data(self, number: int, flags: int, payload: Buffer) -> None:
        size = len(payload)
        self._room -= size
        if self._room < _CONNECTION_WINDOW // 2:
            self._acknowledge()
        stream = self._streams.get(number)
        if stream is None or stream.owner is None:
            self._late_room -= size
            if number > self._last or self._late_room < 0:
                raise InvalidInput("data of no call")
            return
        stream.room -= size
        if not stream.is_open:
            self._break(number, _STREAM_CLOSED)
            return
        if stream.room < 0:
            self._break(number, _FLOW_CONTROL_ERROR)
            return
        if flags & _PADDED:
            payload = _unpadded(payload)
        if payload:
            stream.owner.receive(payload)
        if flags & _END_STREAM:
            self._close_requests(stream)

    def _acknowledge(self) -> None:
        """Let the client send on all streams together as much as it has sent."""
        more = _CONNECTION_WINDOW - self._room
        self._room = _CONNECTION_WINDOW
        self._acknowledged_at = time.monotonic()
        self.send(frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(more)))

    def _close_requests(self, stream: Stream) -> None:
        stream.is_open = False
        if stream.owner is not None:
            stream.owner.end_requests()

    def _receive_headers(self, number: int, flags: int, payload: bytes) -> None:
        # Clients send a second frame only for blocks that are larger than gRPC accepts.
        if not flags & _END_HEADERS:
            raise InvalidInput("a header block of several frames")
        if flags & _PADDED:
            payload = bytes(_unpadded(payload))
        if flags & _WITH_PRIORITY:
            payload = payload[5:]
        headers = self._headers.decode(payload)
        stream = self._streams.get(number)
        if stream is None and number <= self._last:
            return  # trailers of a call that has ended
        if stream is None:
            if not number & 1:
                raise InvalidInput("a call with an even number")
            self._last = number
            self._streams[number] = stream = Stream(self, number, self._window_of_streams)
            self.idle_since = None
            stream.is_open = not flags & _END_STREAM
            if len(self._streams) > MAX_CALLS_PER_CONNECTION:
                stream.reset(_REFUSED_STREAM)
                return
            self._accept(stream, headers)
        elif not (flags & _END_STREAM and stream.is_open):
            self._break(number, _PROTOCOL_ERROR)
            return
        if flags & _END_STREAM:
            self._close_requests(stream)

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size or number > self._last:
            raise InvalidInput("a malformed reset")
        self._lose(number)

    def _receive_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise InvalidInput("a malformed ping")
        if flags & _ACK:
            self._pings -= 1
        else:
            self.send(frame(_PING, _ACK, 0, payload))

    def _widen(self, number: int, payload: bytes) -> None:
        if len(payload) != _NUMBER.size:
            raise InvalidInput("a malformed window")
        [more] = _NUMBER.unpack(payload)
        if not number:
            self.window += more
            if not 0 < more <= _MAX_WINDOW or self.window > _MAX_WINDOW:
                raise InvalidInput("a malformed window")
            self._is_widened = True
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
            if not 0 < more <= _MAX_WINDOW or stream.window > _MAX_WINDOW:
                self._break(number, _FLOW_CONTROL_ERROR if more else _PROTOCOL_ERROR)
            elif stream.is_blocked:
                self._send_of(stream)

    def _apply_settings(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        if len(payload) % _SETTING.size:
            raise InvalidInput("malformed settings")
        window = self._window_of_streams
        for key, setting in _SETTING.iter_unpack(payload):
            if key == _INITIAL_WINDOW_SIZE:
                if setting > _MAX_WINDOW:
                    raise InvalidInput("a window that is too large")
                window = setting
        if window != self._window_of_streams:
            for stream in self._streams.values():
                stream.window += window - self._window_of_streams
            self._window_of_streams = window
            self._is_widened = True
        self.send(frame(_SETTINGS, _ACK, 0))


def _unpadded(payload: Buffer) -> Buffer:
    if not payload or payload[0] >= len(payload):
        raise InvalidInput("malformed padding")
    return payload[1 : len(payload) - payload[0]]


def _drop(_data: bytes) -> None:
    """Send nothing: the client has left."""
