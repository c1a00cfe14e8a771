"""What a client sends on a connection of HTTP/2."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.protocol.limits import MAX_CALLS_PER_CONNECTION
from synergai.protocol.native import http2
from synergai.protocol.native.headers import HeaderDecoder
from synergai.protocol.native.sending import STREAM_WINDOW, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.protocol.native.headers import CallHeaders
    from synergai.protocol.native.sending import Sender
    from synergai.protocol.request_codec import Buffer

MAX_DATA_FRAME: Final = 1 << 20
"""Bytes of a frame of data, unless it is padded, which no client of gRPC does: what comes in one
frame is received where its message is put together."""
_CONNECTION_WINDOW: Final = 1 << 30
"""Bytes of all calls that were not read yet: what is to bound them is the window of each."""
_ACKNOWLEDGE_S: Final = 1.0
"""Interval at which data that arrives slowly is acknowledged. Clients ping a server that sends
nothing, and the pings wait behind their data."""
_MAX_LATE: Final = MAX_CALLS_PER_CONNECTION * STREAM_WINDOW
"""Data for calls that have just ended: as much as a client sends before it can know that."""
_WHOLE_BYTES: Final = 1024
"""Frames of data up to this size are handled, and counted, once they have arrived in full; larger
ones are handled in parts."""
_LEAST_PLACED: Final = 32 << 10
"""Bytes from which on the rest of a frame is received where its message is put together."""
_FIRST_FRAMES: Final = http2.frame(
    http2.SETTINGS,
    0,
    0,
    http2.SETTING.pack(http2.MAX_CONCURRENT_STREAMS, MAX_CALLS_PER_CONNECTION)
    + http2.SETTING.pack(http2.INITIAL_WINDOW_SIZE, STREAM_WINDOW)
    + http2.SETTING.pack(http2.MAX_FRAME_SIZE, MAX_DATA_FRAME)
    + http2.SETTING.pack(http2.MAX_HEADER_LIST_SIZE, http2.MAX_FRAME),
) + http2.frame(
    http2.WINDOW_UPDATE, 0, 0, http2.NUMBER.pack(_CONNECTION_WINDOW - http2.DEFAULT_WINDOW)
)
GOAWAY: Final = http2.frame(http2.GOAWAY, 0, 0, http2.NUMBER.pack(http2.MAX_NUMBER) + bytes(4))
"""The frame that asks a client to begin no further calls on its connection."""
_END_SOON: Final = GOAWAY + http2.frame(http2.PING, 0, 0, b"synergai")
"""The same, and a ping, which the client acknowledges behind the calls that it had begun before."""
_NO_HTTP_1: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 67\r\n\r\n"
    b"this port is for gRPC; REST has a port of its own, by default 8002\n"
)


class NativeSession:
    """The calls of one connection.

    Args:
        sender: sends frames to the client.
        accept: sets the owner of a stream that the client has opened.
        count: counts a frame of the client, of a kind and size.

    Attributes:
        idle_since: when the last call ended, by the monotonic clock; None during a call.
        between_frames: whether the first frames were sent, so that others can be.
        data_to_come: bytes that are missing of a frame of data.
        begun: calls that the client began in what was received last.
        held: whether another call followed them.
    """

    def __init__(
        self,
        sender: Sender,
        accept: Callable[[Stream, CallHeaders], None],
        count: Callable[[int, int], None],
    ) -> None:
        self._sender = sender
        self._count = count
        self.idle_since: float | None = time.monotonic()
        self.between_frames = False
        self._accept = accept
        self._room = _CONNECTION_WINDOW
        self._acknowledged_at = 0.0
        self._window_of_streams = http2.DEFAULT_WINDOW
        self._headers = HeaderDecoder()
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._is_widened = False
        # Bytes that the client may send for calls that have just ended.
        self._late_room = 0
        self._preface = http2.PREFACE
        self.begun = 0
        self.held = False
        # Number and flags of the frame of data that is being received.
        self._data_frame = (0, 0)
        self.data_to_come = 0
        self._pings = 0

    @property
    def ended(self) -> bool:
        """Whether all calls have ended, and the client has received all pings."""
        has_sent_all = not (self._streams or self._sender.gathered)
        return self.between_frames and has_sent_all and self._pings <= 0

    def end_soon(self) -> bytes:
        """Return frames that ask the client to begin no further calls."""
        self._pings += 1
        return _END_SOON

    def close(self) -> None:
        """End all calls: the client has left. Idempotent."""
        self._sender.close()
        for number in tuple(self._streams):
            self._lose(number)

    def _forget(self, number: int) -> None:
        """Remove a stream that has ended."""
        if (stream := self._streams.pop(number, None)) is not None:
            if stream.is_open:
                self._late_room = min(self._late_room + max(0, stream.room), _MAX_LATE)
            stream.owner = None  # which has the stream: a cycle
        if not self._streams:
            self.idle_since = time.monotonic()

    def _lose(self, number: int) -> None:
        """Remove a stream that the client has ended."""
        if (stream := self._streams.get(number)) is not None:
            owner = stream.owner
            self._sender.blocked.pop(stream, None)
            self._forget(number)
            if owner is not None:
                owner.lost()

    def _break(self, number: int, code: int) -> None:
        """End a call whose client broke the protocol; others continue (RFC 9113, 5.4.2)."""
        stream = self._streams[number]
        owner = stream.owner
        stream.reset(code)
        self._late_room += self.data_to_come  # the rest of its frame is still to be skipped
        if owner is not None:
            owner.lost()

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
        while True:
            if self.data_to_come:
                stop = min(at + self.data_to_come, end)
                self.receive_part(memoryview(data)[at:stop])
                at = stop
            start = at + http2.HEADER_BYTES
            if start > end:
                break
            high, low, kind, flags, number = http2.HEADER.unpack_from(data, at)
            size = high << 8 | low
            number &= 0x7FFFFFFF
            comes_in_parts = kind == http2.DATA and size > _WHOLE_BYTES and not flags & http2.PADDED
            if size > (MAX_DATA_FRAME if comes_in_parts else http2.MAX_FRAME):
                raise InvalidInput(f"a frame of {size:,} bytes")
            if comes_in_parts:
                self._data_frame, self.data_to_come = (number, flags), size
                at = start
                continue
            stop = start + size
            if stop > end:
                break
            if kind == http2.HEADERS:
                if self.begun == calls:
                    self.held = True
                    break
                self.begun += 1
            self._count(kind, size)
            at = stop
            payload = data[start:stop]
            if kind == http2.DATA:
                self._receive_data(number, flags, payload)
            elif kind == http2.HEADERS:
                self._receive_headers(number, flags, payload)
            elif kind == http2.WINDOW_UPDATE:
                self._widen(number, payload)
            elif kind == http2.PING:
                self._receive_ping(flags, payload)
            elif kind == http2.RST_STREAM:
                self._reset(number, payload)
            elif kind == http2.SETTINGS:
                self._apply_settings(flags, payload)
            elif kind in (http2.PUSH_PROMISE, http2.CONTINUATION):
                raise InvalidInput("an unexpected frame")
        if self._is_widened:  # once, as clients may widen windows by a byte at a time
            self._is_widened = False
            self._sender.send_blocked()
        return at

    def _receive_preface(self, data: bytes) -> int:
        """Return where the frames begin."""
        received = data[: len(self._preface)]
        if not self._preface.startswith(received):
            if b" HTTP/1." in data:  # a person, at the wrong port
                self._sender.send(_NO_HTTP_1)
            raise InvalidInput("no HTTP/2")
        self._preface = self._preface[len(received) :]
        if not self._preface:
            self._sender.send(_FIRST_FRAMES)
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
        if place is None or len(place) < _LEAST_PLACED:
            return None
        return place[: self.data_to_come]

    def receive_part(self, data: memoryview) -> None:
        """Handle the next part of a frame of data, such as one that was received at its place."""
        self.data_to_come -= len(data)
        number, flags = self._data_frame
        if self.data_to_come:
            flags &= ~http2.END_STREAM
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
            self._break(number, http2.STREAM_CLOSED)
            return
        if stream.room < 0:
            self._break(number, http2.FLOW_CONTROL_ERROR)
            return
        if flags & http2.PADDED:
            payload = http2.unpadded(payload)
        if payload:
            stream.owner.receive(payload)
        if flags & http2.END_STREAM:
            self._close_requests(stream)

    def _acknowledge(self) -> None:
        """Let the client send on all streams together as much as it has sent."""
        more = _CONNECTION_WINDOW - self._room
        self._room = _CONNECTION_WINDOW
        self._acknowledged_at = time.monotonic()
        self._sender.send(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.NUMBER.pack(more)))

    def _close_requests(self, stream: Stream) -> None:
        stream.is_open = False
        if stream.owner is not None:
            stream.owner.end_requests()

    def _receive_headers(self, number: int, flags: int, payload: bytes) -> None:
        # Clients send a second frame only for blocks that are larger than gRPC accepts.
        if not flags & http2.END_HEADERS:
            raise InvalidInput("a header block of several frames")
        if flags & http2.PADDED:
            payload = bytes(http2.unpadded(payload))
        if flags & http2.WITH_PRIORITY:
            payload = payload[5:]
        headers = self._headers.decode(payload)
        stream = self._streams.get(number)
        if stream is None and number <= self._last:
            return  # trailers of a call that has ended
        if stream is None:
            if not number & 1:
                raise InvalidInput("a call with an even number")
            self._last = number
            self._streams[number] = stream = Stream(
                self._sender, number, self._window_of_streams, self._forget
            )
            self.idle_since = None
            stream.is_open = not flags & http2.END_STREAM
            if len(self._streams) > MAX_CALLS_PER_CONNECTION:
                stream.reset(http2.REFUSED_STREAM)
                return
            self._accept(stream, headers)
        elif not (flags & http2.END_STREAM and stream.is_open):
            self._break(number, http2.PROTOCOL_ERROR)
            return
        if flags & http2.END_STREAM:
            self._close_requests(stream)

    def _reset(self, number: int, payload: bytes) -> None:
        if len(payload) != http2.NUMBER.size or number > self._last:
            raise InvalidInput("a malformed reset")
        self._lose(number)

    def _receive_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise InvalidInput("a malformed ping")
        if flags & http2.ACK:
            self._pings -= 1
        else:
            self._sender.send(http2.frame(http2.PING, http2.ACK, 0, payload))

    def _widen(self, number: int, payload: bytes) -> None:
        if len(payload) != http2.NUMBER.size:
            raise InvalidInput("a malformed window")
        [more] = http2.NUMBER.unpack(payload)
        if not number:
            self._sender.window += more
            if not 0 < more <= http2.MAX_NUMBER or self._sender.window > http2.MAX_NUMBER:
                raise InvalidInput("a malformed window")
            self._is_widened = True
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
            if not 0 < more <= http2.MAX_NUMBER or stream.window > http2.MAX_NUMBER:
                self._break(number, http2.FLOW_CONTROL_ERROR if more else http2.PROTOCOL_ERROR)
            elif stream.is_blocked:
                self._sender.unblock(stream)

    def _apply_settings(self, flags: int, payload: bytes) -> None:
        if flags & http2.ACK:
            return
        if len(payload) % http2.SETTING.size:
            raise InvalidInput("malformed settings")
        window = self._window_of_streams
        for key, setting in http2.SETTING.iter_unpack(payload):
            if key == http2.INITIAL_WINDOW_SIZE:
                if setting > http2.MAX_NUMBER:
                    raise InvalidInput("a window that is too large")
                window = setting
        if window != self._window_of_streams:
            for stream in self._streams.values():
                stream.window += window - self._window_of_streams
            self._window_of_streams = window
            self._is_widened = True
        self._sender.send(http2.frame(http2.SETTINGS, http2.ACK, 0))
