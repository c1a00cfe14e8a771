"""What a client sends on a connection of HTTP/2."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergai.wire.limits import MAX_CALLS_PER_CONNECTION
from synergai.wire.native import http2
from synergai.wire.native.headers import MAX_FIELD_BYTES, HeaderDecoder
from synergai.wire.native.http2 import ConnectionFault
from synergai.wire.native.sending import STREAM_WINDOW, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.wire.native.headers import CallHeaders
    from synergai.wire.native.sending import Sender
    from synergai.wire.request_codec import Buffer

LARGEST_FRAME: Final = 1 << 20
"""Bytes of a frame: data of one frame is received where its message is put together."""
MAX_BLOCK: Final = 6 * MAX_FIELD_BYTES
"""Bytes of a header block: more than proxies and clients send that do not heed the limit."""
_BLOCK_PER_CALL: Final = 2048
"""Bytes of a header block that take about as long as a call."""
_LIMITS: Final = {http2.HEADERS: MAX_BLOCK, http2.CONTINUATION: MAX_BLOCK, http2.SETTINGS: 1024}
"""Bytes of frames of some types, with those of the header block that they continue."""
_NUMBER: Final = http2.NUMBER.size
_SETTINGS: Final = {
    http2.ENABLE_PUSH: (0, 1, http2.PROTOCOL_ERROR),
    http2.INITIAL_WINDOW_SIZE: (0, http2.MAX_NUMBER, http2.FLOW_CONTROL_ERROR),
    http2.MAX_FRAME_SIZE: (http2.MAX_FRAME, (1 << 24) - 1, http2.PROTOCOL_ERROR),
}
"""Range of settings, and the error of others (RFC 9113, 6.5.2)."""
_CONNECTION_WINDOW: Final = 1 << 30
"""Bytes of all calls that were not read yet: what is to bound them is the window of each."""
_ACKNOWLEDGE_S: Final = 1.0
"""Interval at which slow data is acknowledged: clients ping a server that sends nothing."""
_MAX_LATE: Final = MAX_CALLS_PER_CONNECTION * STREAM_WINDOW
"""Data for calls that have just ended: as much as a client sends before it can know that."""
_WHOLE_BYTES: Final = 1024
"""Frames of data up to this size are handled, and counted, whole; larger ones in parts."""
_LEAST_PLACED: Final = 32 << 10
"""Bytes from which on the rest of a frame is received where its message is put together."""
_FIRST_FRAMES: Final = http2.frame(
    http2.SETTINGS,
    0,
    0,
    http2.SETTING.pack(http2.MAX_CONCURRENT_STREAMS, MAX_CALLS_PER_CONNECTION)
    + http2.SETTING.pack(http2.INITIAL_WINDOW_SIZE, STREAM_WINDOW)
    + http2.SETTING.pack(http2.MAX_FRAME_SIZE, LARGEST_FRAME)
    + http2.SETTING.pack(http2.MAX_HEADER_LIST_SIZE, MAX_FIELD_BYTES),
) + http2.number_frame(http2.WINDOW_UPDATE, 0, _CONNECTION_WINDOW - http2.DEFAULT_WINDOW)
GOAWAY: Final = http2.frame(http2.GOAWAY, 0, 0, http2.NUMBER.pack(http2.MAX_NUMBER) + bytes(4))
"""The frame that asks a client to begin no further calls on its connection."""
OWN_PING: Final = http2.frame(http2.PING, 0, 0, b"synergai")
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
        # Bytes of frames and of padding that nothing is done with.
        self._to_skip = 0
        # Number and flags of the header block that continues in the next frame.
        self._block_of: tuple[int, int] | None = None
        self._block = b""
        # Whether only one type of frame may follow.
        self._is_strict = True
        self._pings = 0

    @property
    def ended(self) -> bool:
        """Whether all calls have ended, and the client has received all pings."""
        has_sent_all = not (self._streams or self._sender.gathered)
        return self.between_frames and has_sent_all and self._pings <= 0

    @property
    def is_busy(self) -> bool:
        """Whether calls are open or held back, or something is still to be sent."""
        return bool(self._streams or self._sender.gathered or self.held)

    def end_soon(self) -> bytes:
        """Return frames that ask the client to begin no further calls.

        It acknowledges the ping behind those that it had begun before.
        """
        self._pings += 1
        return GOAWAY + OWN_PING

    def last_frame(self, code: int = http2.NO_ERROR, text: str = "") -> bytes:
        """Return the frame that says which calls were handled, and why the connection ends."""
        if not self.between_frames:
            return b""
        numbers = http2.NUMBER.pack(self._last) + http2.NUMBER.pack(code)
        return http2.frame(http2.GOAWAY, 0, 0, numbers + text.encode())

    def lose_incomplete(self) -> None:
        """End the calls whose requests have not arrived in full, as nothing more arrives."""
        for number in [number for number, each in self._streams.items() if each.is_open]:
            self._lose(number)

    def lose_calls(self, most: int) -> tuple[int, bool]:
        """End calls of a client that has left, up to a number; return how many, and if any stay."""
        self._sender.close()
        lost = list(islice(self._streams, most))
        for number in lost:
            self._lose(number)
        return len(lost), bool(self._streams)

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
        if (stream := self._streams.get(number)) is not None:
            owner = stream.owner
            stream.reset(code)
            self._late_room += self.data_to_come  # the rest of its frame is still to be skipped
            if owner is not None:
                owner.lost()

    # --- frames -----------------------------------------------------------------------------

    def receive(self, data: bytes, calls: int) -> int:
        """Handle bytes of the client, with this many calls at most; return how many bytes.

        The others begin the next `data`: a call beyond `calls`, or a frame that is incomplete.

        Raises:
            ConnectionFault: they break the protocol.
        """
        self.begun, self.held = 0, False
        at, end = self._receive_preface(data) if self._preface else 0, len(data)
        while True:
            if self.data_to_come or self._to_skip:
                at = self._receive_rest(data, at)
            start = at + http2.HEADER_BYTES
            if start > end:
                break
            length, flags, number = http2.HEADER.unpack_from(data, at)
            size, kind = length >> 8, length & 0xFF
            number &= http2.MAX_NUMBER
            is_plain = kind <= http2.HEADERS or (kind == http2.WINDOW_UPDATE and size == _NUMBER)
            if not is_plain or size > http2.MAX_FRAME or self._is_strict:
                self._check_frame(kind, number, size)
                if kind > http2.CONTINUATION or kind in (http2.PRIORITY, http2.GOAWAY):
                    self._count(kind, size)
                    at, self._to_skip = start, size
                    continue
            is_padded = kind <= http2.HEADERS and flags & http2.PADDED
            if kind == http2.DATA and size > _WHOLE_BYTES:
                if is_padded and start == end:
                    break
                at = start + self._begin_parts(number, flags, size, data[start : start + 1])
                continue
            stop = start + size
            if stop > end:
                break
            if kind == http2.HEADERS and self.begun >= calls:
                self.held = True
                break
            self._count(kind, size)
            at = stop
            payload, padding = data[start:stop], 0
            if is_padded:
                padding = 1 + http2.padding_of(payload, size)
                payload = payload[1 : size - padding + 1]
            if kind == http2.DATA:
                self._receive_data(number, flags, payload, padding)
            elif kind == http2.HEADERS:
                self.begun += 1
                if flags & http2.WITH_PRIORITY:
                    payload = http2.without_priority(payload)
                self._receive_block(number, flags, payload)
            elif kind == http2.WINDOW_UPDATE:
                self._widen(number, payload)
            else:
                self._receive_control_frame(kind, number, flags, payload)
        if self._is_widened:  # once, as clients may widen windows by a byte at a time
            self._is_widened = False
            self._sender.send_blocked()
        return at

    def _receive_rest(self, data: bytes, at: int) -> int:
        """Handle the next part of a frame; return where it ends."""
        if self.data_to_come:
            self.receive_part(part := memoryview(data)[at : at + self.data_to_come])
            at += len(part)
        skipped = 0 if self.data_to_come else min(self._to_skip, len(data) - at)
        self._to_skip -= skipped
        return at + skipped

    def _receive_control_frame(self, kind: int, number: int, flags: int, payload: bytes) -> None:
        if kind == http2.PING and flags & http2.ACK:
            self._pings -= 1
        elif kind == http2.PING:
            self._sender.send(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.RST_STREAM:
            self._lose(number)  # maybe of a call that the client could not begin
        elif kind == http2.SETTINGS:
            self._apply_settings(flags, payload)
        elif self._block_of is not None:
            number, first_flags = self._block_of
            self._receive_block(number, first_flags | flags & http2.END_HEADERS, payload)

    def _check_frame(self, kind: int, number: int, size: int) -> None:
        """Raise a `ConnectionFault` unless a frame is allowed here."""
        http2.check_frame(kind, number, size)
        if self._block_of is not None:
            is_expected = kind == http2.CONTINUATION and number == self._block_of[0]
        elif self._is_strict:
            is_expected = kind == http2.SETTINGS
            self._is_strict = False
        else:
            is_expected = kind not in (http2.PUSH_PROMISE, http2.CONTINUATION)
        if not is_expected:
            raise ConnectionFault(f"an unexpected frame of type {kind}")
        if len(self._block) + size > _LIMITS.get(kind, LARGEST_FRAME):
            code = http2.FRAME_SIZE_ERROR if size > LARGEST_FRAME else http2.ENHANCE_YOUR_CALM
            text = f"a frame of type {kind} with {size:,} bytes behind {len(self._block):,}"
            raise ConnectionFault(text, code)

    def _begin_parts(self, number: int, flags: int, size: int, first: bytes) -> int:
        """Begin to receive a large frame of data; return how many bytes precede the data."""
        padding = 0
        if flags & http2.PADDED:
            padding = 1 + http2.padding_of(first, size)
            self._receive_data(number, 0, b"", padding)
            self._to_skip = padding - 1
        self._data_frame, self.data_to_come = (number, flags), size - padding
        return 1 if padding else 0

    def _receive_preface(self, data: bytes) -> int:
        """Return where the frames begin."""
        received = data[: len(self._preface)]
        if not self._preface.startswith(received):
            if b" HTTP/1." in data:  # a person, at the wrong port
                self._sender.send(_NO_HTTP_1)
            raise ConnectionFault("no HTTP/2")
        self._preface = self._preface[len(received) :]
        if not self._preface:
            self._sender.send(_FIRST_FRAMES)
            self.between_frames = True
        return len(received)

    def message_buffer(self) -> memoryview | None:
        """Return memory for what the client sends next, a part of a frame; None for other data."""
        if self.data_to_come < _LEAST_PLACED:
            return None
        stream = self._streams.get(self._data_frame[0])
        owner = None if stream is None else stream.owner
        buffer = None if owner is None else owner.message_buffer()
        if buffer is None or len(buffer) < _LEAST_PLACED:
            return None
        return buffer[: self.data_to_come]

    def receive_part(self, data: memoryview) -> None:
        """Handle the next part of a frame of data, such as one that was received at its place."""
        self.data_to_come -= len(data)
        number, flags = self._data_frame
        if self.data_to_come:
            flags &= ~http2.END_STREAM
        self._receive_data(number, flags, data)
        is_due = time.monotonic() - self._acknowledged_at > _ACKNOWLEDGE_S
        if self.data_to_come and self._room < _CONNECTION_WINDOW and is_due:
            self._acknowledge()

    def _receive_data(self, number: int, flags: int, payload: Buffer, padding: int = 0) -> None:
        size = len(payload) + padding
        self._room -= size
        if self._room < _CONNECTION_WINDOW // 2:
            self._acknowledge()
        stream = self._streams.get(number)
        if stream is None or stream.owner is None:
            self._late_room -= size
            if not 0 < number <= self._last:
                raise ConnectionFault(f"data on stream {number}, which has no call")
            if self._late_room < 0:
                raise ConnectionFault("data of calls that have ended", http2.STREAM_CLOSED)
            return
        stream.room -= size
        if stream.content_length is not None:
            stream.content_length -= len(payload)
        if not stream.is_open:
            self._break(number, http2.STREAM_CLOSED)
        elif stream.room < 0:
            self._break(number, http2.FLOW_CONTROL_ERROR)
        elif (stream.content_length or 0) < 0:
            self._break(number, http2.PROTOCOL_ERROR)
        else:
            if payload:
                stream.owner.receive_data(payload)
            if flags & http2.END_STREAM:
                self._close_requests(number, stream)

    def _acknowledge(self) -> None:
        """Let the client send on all streams together as much as it has sent."""
        more = _CONNECTION_WINDOW - self._room
        self._room = _CONNECTION_WINDOW
        self._acknowledged_at = time.monotonic()
        self._sender.send(http2.number_frame(http2.WINDOW_UPDATE, 0, more))

    def _close_requests(self, number: int, stream: Stream) -> None:
        if stream.content_length:
            self._break(number, http2.PROTOCOL_ERROR)
        stream.is_open = False
        if stream.owner is not None:
            stream.owner.end_requests()

    def _receive_block(self, number: int, flags: int, payload: bytes) -> None:
        """Handle the next part of a header block."""
        self.begun += len(payload) // _BLOCK_PER_CALL
        if not flags & http2.END_HEADERS:
            self._block_of, self._is_strict = (number, flags), True
            self._block += payload
            return
        if self._is_strict:
            payload, self._block = self._block + payload, b""
            self._block_of, self._is_strict = None, False
        headers = self._headers.decode(payload)
        if (stream := self._streams.get(number)) is not None:
            if not stream.is_open:
                self._break(number, http2.STREAM_CLOSED)
            elif not flags & http2.END_STREAM or headers.malformed or headers.has_pseudo:
                self._break(number, http2.PROTOCOL_ERROR)
            else:
                self._close_requests(number, stream)
        elif number > self._last and number & 1:
            self._open(number, headers, is_open=not flags & http2.END_STREAM)
        elif headers.has_pseudo or not number:  # else trailers of a call that has ended
            raise ConnectionFault(f"a call on stream {number}, which is used or not the client's")

    def _open(self, number: int, headers: CallHeaders, *, is_open: bool) -> None:
        """Begin a call, or refuse it."""
        self._last = number
        self._streams[number] = stream = Stream(
            self._sender, number, self._window_of_streams, self._forget
        )
        self.idle_since = None
        stream.is_open = is_open
        stream.content_length = headers.content_length
        if len(self._streams) > MAX_CALLS_PER_CONNECTION:
            stream.reset(http2.REFUSED_STREAM)
        elif headers.malformed or not headers.has_pseudo:
            stream.reset(http2.PROTOCOL_ERROR)
        else:
            self._accept(stream, headers)
            if not is_open:
                self._close_requests(number, stream)

    def _widen(self, number: int, payload: bytes) -> None:
        more = http2.NUMBER.unpack(payload)[0] & http2.MAX_NUMBER
        code = http2.FLOW_CONTROL_ERROR if more else http2.PROTOCOL_ERROR
        if not number:
            self._sender.window += more
            if not more or self._sender.window > http2.MAX_NUMBER:
                raise ConnectionFault(f"a window that grows by {more:,} bytes", code)
            self._is_widened = True
        elif (stream := self._streams.get(number)) is not None:
            stream.window += more
            if not more or stream.window > http2.MAX_NUMBER:
                self._break(number, code)
            elif stream.is_blocked:
                self._sender.unblock(stream)
        elif number > self._last:
            raise ConnectionFault(f"a window of stream {number}, which has no call")

    def _apply_settings(self, flags: int, payload: bytes) -> None:
        if len(payload) % http2.SETTING.size or (flags & http2.ACK and payload):
            raise ConnectionFault(f"settings of {len(payload):,} bytes", http2.FRAME_SIZE_ERROR)
        if flags & http2.ACK:
            return
        window = self._window_of_streams
        for key, setting in http2.SETTING.iter_unpack(payload):
            least, most, code = _SETTINGS.get(key, (0, setting, http2.PROTOCOL_ERROR))
            if not least <= setting <= most:
                raise ConnectionFault(f"the value {setting:,} of setting {key}", code)
            if key == http2.INITIAL_WINDOW_SIZE:
                window = setting
        if window != self._window_of_streams:
            for stream in self._streams.values():
                stream.window += window - self._window_of_streams
                if stream.window > http2.MAX_NUMBER:
                    raise ConnectionFault(
                        "settings widen a window too far", http2.FLOW_CONTROL_ERROR
                    )
            self._window_of_streams = window
            self._is_widened = True
        self._sender.send(http2.frame(http2.SETTINGS, http2.ACK, 0))
