"""What a client sends on a connection of HTTP/2."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergai.wire.limits import MAX_CALLS_PER_CONNECTION
from synergai.wire.native import flow, http2
from synergai.wire.native.flow import GOAWAY, NO_HTTP_1, OWN_PING, STREAM_WINDOW, Stream
from synergai.wire.native.headers import MAX_FIELD_BYTES, TOO_LARGE, HeaderDecoder
from synergai.wire.native.http2 import DATA, HEADER_BYTES, HEADERS, MAX_NUMBER, ConnectionFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.wire.native.flow import FrameLimits, Sender
    from synergai.wire.native.headers import CallHeaders
    from synergai.wire.request_codec import Buffer

LARGEST_FRAME: Final = 1 << 20
"""Bytes of a frame: data of one frame is received where its message is put together."""
MAX_BLOCK: Final = 2 << 20
"""Bytes of a header block: more than proxies and clients send that do not heed the limit."""
_BLOCK_PER_CALL: Final = 2048
"""Bytes of a header block that take about as long as a call."""
_BLOCKS: Final = (HEADERS, http2.CONTINUATION)
_PADDING: Final = http2.PADDED | http2.WITH_PRIORITY
_WIDENING: Final = http2.NUMBER.size << 8 | http2.WINDOW_UPDATE
"""Length and kind of a frame that widens a window."""
_CONNECTION_WINDOW: Final = 1 << 30
"""Bytes of all calls that were not read yet: what is to bound them is the window of each."""
_ACKNOWLEDGE_S: Final = 1.0
"""Interval at which slow data is acknowledged: clients ping a server that sends nothing."""
_MAX_LATE: Final = MAX_CALLS_PER_CONNECTION * STREAM_WINDOW
"""Data for calls that have just ended: as much as a client sends before it can know that."""
_WHOLE_BYTES: Final = 1024
"""Frames of data up to this size are handled whole; larger ones in parts. Settings are whole."""
_LEAST_PLACED: Final = 32 << 10
"""Bytes from which on the rest of a frame is received where its message is put together."""
_FIRST_FRAMES: Final = flow.frame(
    http2.SETTINGS,
    0,
    0,
    http2.SETTING.pack(http2.MAX_CONCURRENT_STREAMS, MAX_CALLS_PER_CONNECTION)
    + http2.SETTING.pack(http2.INITIAL_WINDOW_SIZE, STREAM_WINDOW)
    + http2.SETTING.pack(http2.MAX_FRAME_SIZE, LARGEST_FRAME)
    + http2.SETTING.pack(http2.MAX_HEADER_LIST_SIZE, MAX_FIELD_BYTES),
) + flow.number_frame(http2.WINDOW_UPDATE, 0, _CONNECTION_WINDOW - http2.DEFAULT_WINDOW)


class NativeSession:
    """The calls of one connection.

    Args:
        sender: sends frames to the client.
        accept: sets the owner of a stream that the client has opened.
        limits: of the frames of the client.

    Attributes:
        idle_since: when the last call ended, by the monotonic clock; None during a call.
        between_frames: whether the first frames were sent, so that others can be.
        to_come: bytes that are missing of a frame that is handled in parts.
        begun: calls that the client began in what was received last.
        held: whether another call followed them.
    """

    def __init__(
        self,
        sender: Sender,
        accept: Callable[[Stream, CallHeaders], object],
        limits: FrameLimits,
    ) -> None:
        self._sender = sender
        self._limits = limits
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
        # Kind, stream and flags of the frame that is handled in parts.
        self._partial = (http2.DATA, 0, 0)
        self.to_come = 0
        # Bytes of frames and of padding that nothing is done with.
        self._to_skip = 0
        # Kind and stream of the frame that must follow, if there is only one.
        self._expected: tuple[int, int] | None = (http2.SETTINGS, 0)
        # Flags and bytes of a header block that continues in the next frame.
        self._block_flags = self._block_bytes = 0
        self._pings = 0

    @property
    def ended(self) -> bool:
        """Whether all calls have ended, and the client has received all pings."""
        return self.between_frames and not self.is_busy and self._pings <= 0

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
        return flow.frame(http2.GOAWAY, 0, 0, numbers + text.encode())

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
        if (stream := self._streams.pop(number, None)) is not None:
            if stream.is_open:
                self._late_room = min(self._late_room + max(0, stream.room), _MAX_LATE)
            stream.owner = None  # which has the stream: a cycle
        if not self._streams:
            self.idle_since = time.monotonic()

    def _lose(self, number: int, code: int | None = None) -> None:
        """Remove a stream that its client has ended, or reset it with a code.

        A client that breaks the protocol in a call loses this call only (RFC 9113, 5.4.2).
        """
        if (stream := self._streams.get(number)) is None:
            return
        owner = stream.owner
        if code is None:
            self._sender.blocked.pop(stream, None)
            self._forget(number)
        else:
            stream.reset(code)
            self._late_room += self.to_come  # the rest of its frame is still to be skipped
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
        if self.to_come or self._to_skip:
            at = self._receive_rest(data, at, calls)
        while (start := at + HEADER_BYTES) <= end and not self.held:
            length, flags, number = http2.HEADER.unpack_from(data, at)
            size, kind, number = length >> 8, length & 0xFF, number & MAX_NUMBER
            stop = start + size
            is_plain = kind <= HEADERS or length == _WIDENING
            if not is_plain or size > _WHOLE_BYTES or flags & _PADDING or self._expected:
                before, at = at, self._receive_special(data, at, calls)
                if at == before:
                    break
                continue
            if stop > end:
                break
            if kind == HEADERS and self.begun >= calls:
                self.held = True
                break
            self._limits.count(kind, size)
            at, payload = stop, data[start:stop]
            if kind == DATA:
                self._receive_data(number, flags, payload)
            elif kind == HEADERS:
                self.begun += 1
                self._receive_block(number, flags, payload)
            else:
                self._widen(number, payload)
        if self._is_widened:  # once, as clients may widen windows by a byte at a time
            self._is_widened = False
            self._sender.send_blocked()
        return at

    def _receive_special(self, data: bytes, at: int, calls: int) -> int:
        """Handle the frame that begins at `at`, of any kind and size; return where it ends.

        This is `at` if it has to wait for more of it, or for a turn. A large one is handled as far
        as it has arrived.
        """
        length, flags, number = http2.HEADER.unpack_from(data, at)
        size, kind, number = length >> 8, length & 0xFF, number & MAX_NUMBER
        start, end, before, behind = at + HEADER_BYTES, len(data), 0, 0
        self._check_frame(kind, number, size)
        if kind > http2.CONTINUATION or kind in (http2.PRIORITY, http2.GOAWAY):
            self._limits.count(kind, size)
            self._to_skip = size
            return self._receive_rest(data, start, calls)
        if kind <= HEADERS and flags & _PADDING:
            if size and start == end:
                return at
            before, behind = http2.padding_of(kind, flags, size, data[start] if size else 0)
        is_partial = size > (_WHOLE_BYTES if kind == DATA else http2.MAX_FRAME)
        stop = start + (before if is_partial else size)
        if stop > end:
            return at
        if kind in _BLOCKS and self.begun >= calls:
            self.held = True
            return at
        self._limits.count(kind, size)
        self.begun += kind == HEADERS
        if is_partial:
            if kind == DATA and before:
                self._receive_data(number, 0, b"", before + behind)
            self._partial = kind, number, flags
            self.to_come, self._to_skip = size - before - behind, behind
            return self._receive_rest(data, stop, calls)
        payload = data[start + before : stop - behind]
        if kind == DATA:
            self._receive_data(number, flags, payload, before + behind)
        elif kind == http2.WINDOW_UPDATE:
            self._widen(number, payload)
        elif kind == http2.PING and flags & http2.ACK:
            self._pings -= 1
        elif kind == http2.PING:
            self._sender.send(flow.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.RST_STREAM:
            self._lose(number)  # maybe of a call that the client could not begin
        elif kind == http2.SETTINGS:
            self._apply_settings(flags, payload)
        else:
            self._receive_block(number, flags, payload)
        return stop

    def _receive_rest(self, data: bytes, at: int, calls: int) -> int:
        """Handle what has arrived of the rest of a frame; return where it ends."""
        is_block = self._partial[0] != DATA
        while at < len(data) and self.to_come:
            if is_block and self.begun >= calls:
                self.held = True
                return at
            size = min(self.to_come, http2.MAX_FRAME) if is_block else self.to_come
            part = memoryview(data)[at : at + size]
            self.receive_part(part)
            at += len(part)
        skipped = min(self._to_skip, len(data) - at)
        self._to_skip -= skipped
        return at + skipped

    def _check_frame(self, kind: int, number: int, size: int) -> None:
        """Raise a `ConnectionFault` unless a frame is allowed here."""
        http2.check_frame(kind, number, size)
        is_free = self._expected is None and kind not in (http2.PUSH_PROMISE, http2.CONTINUATION)
        if not is_free and (kind, number) != self._expected:
            raise ConnectionFault(f"an unexpected frame of type {kind}")
        most = _WHOLE_BYTES if kind == http2.SETTINGS else LARGEST_FRAME
        if size > most or self._block_bytes + size > MAX_BLOCK:
            code = http2.FRAME_SIZE_ERROR if size > LARGEST_FRAME else http2.ENHANCE_YOUR_CALM
            text = f"a frame of type {kind} with {size:,} bytes behind {self._block_bytes:,}"
            raise ConnectionFault(text, code)

    def _receive_preface(self, data: bytes) -> int:
        """Return where the frames begin."""
        received = data[: len(self._preface)]
        if not self._preface.startswith(received):
            if b" HTTP/1." in data:  # a person, at the wrong port
                self._sender.send(NO_HTTP_1)
            raise ConnectionFault("no HTTP/2")
        self._preface = self._preface[len(received) :]
        if not self._preface:
            self._sender.send(_FIRST_FRAMES)
            self.between_frames = True
        return len(received)

    def message_buffer(self) -> memoryview | None:
        """Return memory for what the client sends next, a part of a frame; None for other data."""
        kind, number, _ = self._partial
        if self.to_come < _LEAST_PLACED or kind != DATA:
            return None
        stream = self._streams.get(number)
        owner = None if stream is None else stream.owner
        buffer: memoryview | None = None if owner is None else owner.message_buffer()
        if buffer is None or len(buffer) < _LEAST_PLACED:
            return None
        return buffer[: self.to_come]

    def receive_part(self, data: memoryview) -> None:
        """Handle the next part of a frame, such as data that was received at its place."""
        self.to_come -= len(data)
        kind, number, flags = self._partial
        if kind != DATA:
            self._receive_block(number, flags & ~http2.END_HEADERS if self.to_come else flags, data)
            return
        self._receive_data(number, flags & ~http2.END_STREAM if self.to_come else flags, data)
        is_due = time.monotonic() - self._acknowledged_at > _ACKNOWLEDGE_S
        if self.to_come and self._room < _CONNECTION_WINDOW and is_due:
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
            self._lose(number, http2.STREAM_CLOSED)
        elif stream.room < 0:
            self._lose(number, http2.FLOW_CONTROL_ERROR)
        elif (stream.content_length or 0) < 0:
            self._lose(number, http2.PROTOCOL_ERROR)
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
        self._sender.send(flow.number_frame(http2.WINDOW_UPDATE, 0, more))

    def _close_requests(self, number: int, stream: Stream) -> None:
        if stream.content_length:
            self._lose(number, http2.PROTOCOL_ERROR)
        stream.is_open = False
        if stream.owner is not None:
            stream.owner.end_requests()

    def _receive_block(self, number: int, flags: int, part: Buffer) -> None:
        self.begun += len(part) // _BLOCK_PER_CALL
        if self._expected:
            flags = self._block_flags | flags & http2.END_HEADERS
        if not flags & http2.END_HEADERS:
            self._block_bytes += len(part)
            self._expected, self._block_flags = (http2.CONTINUATION, number), flags
            self._headers.feed(bytes(part))
            return
        self._expected, self._block_bytes = None, 0
        headers = self._headers.decode(bytes(part))
        if headers is TOO_LARGE:
            self._limits.count_refused(self._headers.surplus)
        if (stream := self._streams.get(number)) is not None:
            if not stream.is_open:
                self._lose(number, http2.STREAM_CLOSED)
            elif not flags & http2.END_STREAM or headers.malformed or headers.has_pseudo:
                self._lose(number, http2.PROTOCOL_ERROR)
            else:
                self._close_requests(number, stream)
        elif number > self._last and number & 1:
            self._open(number, headers, is_open=not flags & http2.END_STREAM)
        elif headers.has_pseudo or not number:  # else trailers of a call that has ended
            raise ConnectionFault(f"a call on stream {number}, which is used or not the client's")

    def _open(self, number: int, headers: CallHeaders, *, is_open: bool) -> None:
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
        more = http2.NUMBER.unpack(payload)[0] & MAX_NUMBER
        stream = self._streams.get(number)
        if not number:
            window = self._sender.window = self._sender.window + more
        elif stream is not None:
            window = stream.window = stream.window + more
        elif number > self._last:
            raise ConnectionFault(f"a window of stream {number}, which has no call")
        else:
            return
        if not more or window > MAX_NUMBER:
            code = http2.FLOW_CONTROL_ERROR if more else http2.PROTOCOL_ERROR
            if not number:
                raise ConnectionFault(f"a window that grows by {more:,} bytes", code)
            self._lose(number, code)
        elif stream is None:
            self._is_widened = True
        elif stream.is_blocked:
            self._sender.unblock(stream)

    def _apply_settings(self, flags: int, payload: bytes) -> None:
        self._expected = None
        window = http2.initial_window(flags, payload, self._window_of_streams)
        if flags & http2.ACK:
            return
        if window != self._window_of_streams:
            for stream in self._streams.values():
                stream.window += window - self._window_of_streams
                if stream.window > http2.MAX_NUMBER:
                    raise ConnectionFault(
                        "settings widen a window too far", http2.FLOW_CONTROL_ERROR
                    )
            self._window_of_streams = window
            self._is_widened = True
        self._sender.send(flow.frame(http2.SETTINGS, http2.ACK, 0))
