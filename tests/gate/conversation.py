"""A client of HTTP/2 that sends given frames, and reads as a legal client does."""

import ssl
import struct
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import Final, Self

from hpack import Decoder, HPACKError

from tests import http2
from tests.http2 import Frame, Http2Connection, frame

FIRST_WINDOW: Final = 65_535
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT, INITIAL_WINDOW, MAX_FRAME = 1, 2, 3, 4, 5
_NUMBER: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")
_PROBE: Final = b"the gate"
_WITHIN_S: Final = 20.0


def settings(values: dict[int, int]) -> bytes:
    """Return the frame of settings."""
    return frame(http2.SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values.items()))


class Answer:
    """What the server sent on a stream.

    Attributes:
        data: the bytes of its messages, with their prefixes.
        fields: the fields of its headers and of its trailers.
        end: how it ended: ``status CODE``, ``HTTP STATUS`` or ``RST_STREAM CODE``; empty before.
    """

    def __init__(self, window: int) -> None:
        self.data = bytearray()
        self.fields: dict[str, str] = {}
        self.end = ""
        self.window = window


class Conversation:
    """A connection whose client keeps the protocol in what it reads.

    Args:
        address: ``host:port`` of the server.
        values: the client's settings.
        tls: context for an encrypted connection.
        grant: bytes by which it widens the window of a stream that is empty.

    Attributes:
        answers: what the server sent, by stream.
        broken: what the server did that it must not do.
        goaway: code of the server's GOAWAY for an error, and its text; None without one.
        closed: whether the server has closed the connection.
    """

    def __init__(
        self,
        address: str,
        values: dict[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
        grant: int = FIRST_WINDOW,
    ) -> None:
        values = values or {}
        opening = http2.PREFACE + settings(values)
        self._connection = Http2Connection(address, tls=tls, opening=opening)
        self._decoder = Decoder()
        self._table_size = values.get(HEADER_TABLE_SIZE, 4096)
        self._decoder.max_allowed_table_size = max(self._table_size, 4096)
        self._grant = grant
        self._window_of_streams = values.get(INITIAL_WINDOW, FIRST_WINDOW)
        self._room = FIRST_WINDOW
        self._room_of_streams: defaultdict[int, int] = defaultdict(lambda: FIRST_WINDOW)
        self._block = (0, 0, b"")
        self._pongs = 0
        self._acknowledged = 0
        self._less_later: deque[tuple[int, tuple[int, ...]]] = deque([(0, ())])
        self._largest_frame = values.get(MAX_FRAME, http2.LARGEST_FRAME)
        self.answers: defaultdict[int, Answer] = defaultdict(
            lambda: Answer(self._window_of_streams)
        )
        self.broken: list[str] = []
        self.goaway: tuple[int, str] | None = None
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.__exit__(None, None, None)

    def send(self, data: bytes) -> None:
        """Send bytes; note if the server has closed the connection."""
        with suppress(OSError):  # what it has sent before can still be read
            self._connection.send([data])

    def send_data(self, data: bytes, stream: int, size: int) -> None:
        """Send frames of data of this size once the server's windows have room for it."""
        while size > min(self._room, self._room_of_streams[stream]) and not self._is_over(stream):
            self._read()
        self._room -= size
        self._room_of_streams[stream] -= size
        self.send(data)

    def change_window(self, window: int) -> None:
        """Change the window of all streams by a setting."""
        more = window - self._window_of_streams
        self._window_of_streams = window
        # The server may use a window until it has acknowledged a smaller one.
        self._less_later.append((min(more, 0), tuple(self.answers)))
        self._resize(max(more, 0), tuple(self.answers))
        self.send(settings({INITIAL_WINDOW: window}))

    def open(self, stream: int) -> None:
        """Let the server send on a stream that was just opened."""
        self._widen(stream, self.answers[stream])

    def read_waiting(self) -> None:
        """Read what has arrived."""
        while not self.closed and self._connection.has_frames():
            self._read()

    def finish(self, streams: set[int], settings_sent: int) -> None:
        """Read until these streams have ended, and all settings and a ping are acknowledged."""
        for stream in streams:
            self._widen(stream, self.answers[stream])
        self.send(frame(http2.PING, 0, 0, _PROBE))
        while not self.closed and not (
            self._pongs
            and self._acknowledged >= settings_sent
            and all(self.answers[stream].end for stream in streams)
        ):
            self._read()

    def outcome(self, stream: int, *, is_answered: bool, within_s: float = _WITHIN_S) -> str:
        """Return what the server made of what was sent last.

        That is ``GOAWAY CODE``, ``closed``, the end of the answer on a stream, or ``ignored``.

        Args:
            stream: the stream that it was about.
            is_answered: whether an answer on that stream is expected.
            within_s: time that it may take.
        """
        self.send(frame(http2.PING, 0, 0, _PROBE))
        ends_at = time.monotonic() + within_s
        while not self.closed and self.goaway is None:
            if self._pongs and (self.answers[stream].end or not is_answered):
                break
            try:
                self._read(max(0.001, ends_at - time.monotonic()))
            except TimeoutError:
                return self.answers[stream].end or "nothing"
        if self.goaway is not None:
            return f"GOAWAY {self.goaway[0]}"
        return "closed" if self.closed else self.answers[stream].end or "ignored"

    def _is_over(self, stream: int) -> bool:
        return self.closed or bool(self.answers[stream].end)

    def _read(self, within_s: float = _WITHIN_S) -> None:
        received = self._connection.read_frame(within_s)
        if received is None:
            self.closed = True
            return
        if len(received.payload) > self._largest_frame:
            self.broken.append(f"a frame of {len(received.payload):,} bytes")
        match received.kind:
            case http2.DATA:
                self._take_data(received)
            case http2.HEADERS | http2.CONTINUATION:
                self._take_fields(received)
            case http2.RST_STREAM:
                [code] = _NUMBER.unpack(received.payload)
                answer = self.answers[received.stream]
                answer.end = answer.end or f"RST_STREAM {code}"
            case http2.SETTINGS:
                self._take_settings(received)
            case http2.PING if received.flags & http2.ACK:
                self._pongs += received.payload == _PROBE
            case http2.PING:
                self.send(frame(http2.PING, http2.ACK, 0, received.payload))
            case http2.GOAWAY:
                _, code = struct.unpack_from(">II", received.payload)
                if code:
                    self.goaway = code, received.payload[8:].decode()
            case http2.WINDOW_UPDATE:
                self._take_window(received)

    def _take_data(self, received: Frame) -> None:
        size, answer = len(received.payload), self.answers[received.stream]
        if answer.end.startswith(("status", "HTTP")):
            self.broken.append("data behind the end of a stream")
        answer.window -= size
        if size and answer.window < 0:
            self.broken.append(f"data of {-answer.window:,} bytes more than a window")
        # No padding is expected: neither server pads.
        answer.data += received.payload
        if size:
            self.send(frame(http2.WINDOW_UPDATE, 0, 0, _NUMBER.pack(size)))
        if received.flags & http2.END_STREAM:
            answer.end = answer.end or "no trailers"
        self._widen(received.stream, answer)

    def _resize(self, more: int, streams: tuple[int, ...]) -> None:
        for stream in streams:
            self.answers[stream].window += more
            self._widen(stream, self.answers[stream])

    def _widen(self, stream: int, answer: Answer) -> None:
        if answer.window <= 0 and not answer.end:
            more = self._grant - answer.window
            answer.window += more
            self.send(frame(http2.WINDOW_UPDATE, 0, stream, _NUMBER.pack(more)))

    def _take_fields(self, received: Frame) -> None:
        stream, flags, block = self._block
        if received.kind == http2.HEADERS:
            stream, flags = received.stream, received.flags
        block += received.payload
        if not received.flags & http2.END_HEADERS:
            self._block = stream, flags, block
            return
        self._block = (0, 0, b"")
        answer = self.answers[stream]
        try:
            answer.fields |= {str(name): str(value) for name, value in self._decoder.decode(block)}
        except HPACKError as error:
            self.broken.append(f"a header block: {error}")
        if flags & http2.END_STREAM:
            status = answer.fields.get("grpc-status")
            answer.end = answer.end or (
                f"HTTP {answer.fields.get(':status')}" if status is None else f"status {status}"
            )

    def _take_settings(self, received: Frame) -> None:
        if received.flags & http2.ACK:
            self._acknowledged += 1
            if self._less_later:
                self._resize(*self._less_later.popleft())
            self._decoder.max_allowed_table_size = self._table_size
            return
        for key, value in _SETTING.iter_unpack(received.payload):
            if key == INITIAL_WINDOW:
                more = value - FIRST_WINDOW
                for stream in self._room_of_streams:
                    self._room_of_streams[stream] += more
                self._room_of_streams.default_factory = lambda value=value: value
        self.send(frame(http2.SETTINGS, http2.ACK, 0))

    def _take_window(self, received: Frame) -> None:
        [more] = _NUMBER.unpack(received.payload)
        if not more:
            self.broken.append("a WINDOW_UPDATE of 0")
        if received.stream:
            self._room_of_streams[received.stream] += more
        else:
            self._room += more
