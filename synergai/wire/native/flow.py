"""Flow of a connection of HTTP/2: what the server sends, and how many frames the client may."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from hpack.hpack import encode_integer

from synergai.wire.native import http2
from synergai.wire.native.http2 import ConnectionFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import grpc

    from synergai.wire.request_codec import Buffer
    from synergai.wire.server_call import Metadata

RESPONSE: Final = b"\x20\x88\x0f\x10\x10application/grpc"
"""The fields that begin a response: status 200, and the type of its content.

No response uses a table, however small that of the client is, and the first one has to say so.
"""
SUCCEEDED: Final = b"\0\x0bgrpc-status\x010"
"""The field that ends a response."""
UNSUPPORTED_TYPE: Final = b"\x20\x08\x03415"
"""The field that answers what is no call of gRPC."""
_PLAIN: Final = "".join(chr(each) for each in range(0x20, 0x7F) if each != 0x25)


def encoded(fields: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Return metadata as fields that no table remembers."""
    block = b""
    for key, value in fields:
        if isinstance(value, bytes):
            value = base64.b64encode(value).rstrip(b"=").decode()
        block += b"".join((b"\0", _text(key), _text(value)))
    return block


def status_fields(code: grpc.StatusCode, details: str, metadata: Metadata) -> bytes:
    """Return the fields that end a call with a status."""
    number: int = code.value[0]
    status = ("grpc-status", str(number)), ("grpc-message", quote(details, safe=_PLAIN))
    return encoded((*status, *metadata))


def _text(text: str) -> bytes:
    data = text.encode()
    size = bytes((len(data),)) if len(data) < 0x7F else bytes(encode_integer(len(data), 7))
    return size + data


def frame(kind: int, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """Return a frame."""
    return b"".join((http2.HEADER.pack(len(payload) << 8 | kind, flags, stream), payload))


def block_frames(flags: int, stream: int, block: bytes) -> bytes:
    """Return the frames of a header block, whose first one has these flags."""
    size = len(block)
    if size <= http2.MAX_FRAME:
        flags |= http2.END_HEADERS
        return http2.HEADER.pack(size << 8 | http2.HEADERS, flags, stream) + block
    frames = [frame(http2.HEADERS, flags, stream, block[: http2.MAX_FRAME])]
    for start in range(http2.MAX_FRAME, size, http2.MAX_FRAME):
        end = start + http2.MAX_FRAME
        ends = http2.END_HEADERS if end >= size else 0
        frames.append(frame(http2.CONTINUATION, ends, stream, block[start:end]))
    return b"".join(frames)


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Return a frame with a number: the growth of a window, or the code of a reset."""
    return frame(kind, 0, stream, http2.NUMBER.pack(number))


STREAM_WINDOW: Final = 1 << 20
"""Bytes of a call that its handler has not read yet, beyond a message that is incomplete."""
GOAWAY: Final = frame(http2.GOAWAY, 0, 0, http2.NUMBER.pack(http2.MAX_NUMBER) + bytes(4))
"""The frame that asks a client to begin no further calls on its connection."""
OWN_PING: Final = frame(http2.PING, 0, 0, b"synergai")
NO_HTTP_1: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 67\r\n\r\n"
    b"this port is for gRPC; REST has a port of its own, by default 8002\n"
)
_MOST_GATHERED: Final = 64 << 10
"""Bytes of frames beyond which they are sent before the end of the turn."""


class Stream:
    """A stream of a client, on which the server sends as much as the client takes.

    Args:
        forget: called with its number once it has ended.

    Attributes:
        owner: its `Call`; None before it is accepted, and once it has ended.
        window: bytes that the client takes.
        room: bytes that the client may send.
        content_length: bytes of data that the client has announced and not sent; None if it has
            announced none.
        is_open: whether the client may send more.
    """

    owner: Any = None  # whose module imports this one
    room = STREAM_WINDOW
    is_open = True
    content_length: int | None = None
    # When the client last took some of what is blocked.
    _taken_at = 0.0
    _last_fields = b""

    def __init__(
        self, sender: Sender, number: int, window: int, forget: Callable[[int], None]
    ) -> None:
        self.window = window
        self._sender = sender
        self._number = number
        self._forget = forget
        self._blocked: deque[memoryview] = deque()

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
        sender = self._sender
        return (
            size <= http2.MAX_FRAME
            and size <= self.window
            and size <= sender.window
            and sender.writable
            and not self._blocked
        )

    def begin_response(self, fields: bytes) -> None:
        """Send the fields that begin a response."""
        self._sender.send(block_frames(0, self._number, fields))

    def send_at_once(self, data: bytes) -> bool:
        """Send data if the client takes it now; return whether it does."""
        sender, size = self._sender, len(data)
        if not self.takes(size):
            return False
        self.window -= size
        sender.window -= size
        sender.send(frame(http2.DATA, 0, self._number, data))
        return True

    def send(self, data: bytes) -> None:
        """Send data, or keep it until the client takes it."""
        if not self.send_at_once(data):
            if not self._blocked:
                self._taken_at = time.monotonic()
            self._blocked.append(memoryview(data))
            self._sender.unblock(self)

    def end_response(self, fields: bytes) -> None:
        """End the stream with fields, behind all data."""
        if self._blocked:
            self._last_fields = fields
        else:
            self._forget(self._number)
            last = block_frames(http2.END_STREAM, self._number, fields)
            self._sender.send(last + self._reset_of_rest())

    def respond(self, first: bytes, data: bytes, last: bytes) -> None:
        """Send a response and end the stream, if possible in frames that are sent together.

        Args:
            first: the fields that begin it; empty if they were sent.
            last: the fields that end it.
        """
        if self.takes(len(data)):
            self.respond_now(first, data, last)
        else:
            if first:
                self.begin_response(first)
            self.send(data)
            self.end_response(last)

    def respond_now(self, first: bytes, data: bytes, last: bytes) -> None:
        """Do the same with data that the client takes now."""
        number, size = self._number, len(data)
        self._sender.window -= size
        self._forget(number)
        begin = block_frames(0, number, first) if first else b""
        of_data = http2.HEADER.pack(size << 8, 0, number)
        end = block_frames(http2.END_STREAM, number, last)
        self._sender.gather(b"".join((begin, of_data, data, end, self._reset_of_rest())))

    def reset(self, code: int) -> None:
        """End the stream at once; what was blocked is not sent."""
        self._blocked.clear()
        self._sender.blocked.pop(self, None)
        self._forget(self._number)
        self._sender.send(number_frame(http2.RST_STREAM, self._number, code))

    def widen_window(self) -> None:
        """Let the client send more, as what it has sent is being read, unless it has ended."""
        if self.owner is not None and self.is_open and self.room < STREAM_WINDOW // 2:
            more, self.room = STREAM_WINDOW - self.room, STREAM_WINDOW
            self._sender.send(number_frame(http2.WINDOW_UPDATE, self._number, more))

    def unblock(self) -> None:
        """Send of what is blocked as much as the client takes."""
        sender = self._sender
        while self._blocked and sender.writable:
            data = self._blocked[0]
            size = min(len(data), http2.MAX_FRAME, self.window, sender.window)
            if size <= 0:
                return
            self.window -= size
            sender.window -= size
            sender.send(frame(http2.DATA, 0, self._number, data[:size]))
            self._taken_at = time.monotonic()
            if size < len(data):
                self._blocked[0] = data[size:]
            else:
                self._blocked.popleft()
        if self._blocked:
            return
        owner = self.owner
        if self._last_fields:
            self.end_response(self._last_fields)
        if owner is not None:
            owner.sent()

    def _reset_of_rest(self) -> bytes:
        """Return the frame that tells a client that it need not send the rest, if there is one."""
        if not self.is_open:
            return b""
        return number_frame(http2.RST_STREAM, self._number, http2.NO_ERROR)


class Sender:
    """Sends the frames of one connection.

    Args:
        write: sends bytes to the client.

    Attributes:
        window: bytes that the client takes on all streams together.
        writable: whether the connection takes data.
        gathered: frames that are sent at the end of the turn.
        blocked: streams whose data waits until the client takes it.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self.window = http2.DEFAULT_WINDOW
        self.writable = True
        self.gathered = bytearray()
        self.blocked: dict[Stream, None] = {}
        self._gathers = False
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Send nothing more, as the client has left; forget its connection."""
        self._write = lambda _: None

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
        self.gathered += data
        if len(self.gathered) > _MOST_GATHERED:
            self._write_gathered()
        elif not self._gathers:
            self._send_at_end_of_turn()

    def _send_at_end_of_turn(self) -> None:
        self._gathers = True
        self._loop.call_soon(self._send_gathered)

    def _send_gathered(self) -> None:
        self._gathers = False
        if self.gathered:
            self._write_gathered()

    def _write_gathered(self) -> None:
        data = bytes(self.gathered)
        self.gathered.clear()
        self._write(data)

    def unblock(self, stream: Stream) -> None:
        """Send what is blocked on a stream as soon as the client takes it."""
        self.blocked[stream] = None
        self._send_of(stream)

    def send_blocked(self) -> None:
        """Send of what is blocked as much as the client takes."""
        for stream in tuple(self.blocked):
            if not self.window:
                break
            self._send_of(stream)

    def _send_of(self, stream: Stream) -> None:
        stream.unblock()
        if not stream.is_blocked:
            self.blocked.pop(stream, None)


# Limits of the frames of a connection. Calls and their data are limited elsewhere.

CREDIT: Final = 1000
"""Frames without data that a connection may send at once."""
CREDIT_PER_S: Final = 200
SMALL_BYTES: Final = 512
SMALL_CREDIT: Final = 50_000
"""Frames with up to `SMALL_BYTES` of data that a connection may send at once: gRPC does not apply
flow control to data for calls that have ended."""
SMALL_PER_S: Final = 20_000
_EARNED_BY_RESPONSE: Final = 2
_RESPONSE_BYTES: Final = 16
"""Bytes sent to a client that earn one more frame: it acknowledges messages with two frames."""
_REFUSED_COST: Final = 32
"""Credit of a call whose header block is too large: more than the refusal earns."""
_SURPLUS: Final = 64
"""Fields of such a block beyond the limit that cost one more."""
_ACKNOWLEDGED_COST: Final = 4
"""Credit of a frame that the server acknowledges: more than the acknowledgement earns."""


class _Credit:
    """What a client may send at once, and earns with time."""

    def __init__(self, most: int, per_s: int, of: str, clock: Callable[[], float]) -> None:
        self.left = self._most = most
        self._per_s = per_s
        self._of = of
        self._clock = clock
        self._at = clock()

    def take(self, cost: int) -> None:
        self.left -= cost
        if self.left < 0:
            now = self._clock()
            earned = int((now - self._at) * self._per_s)
            if self.left + earned < 0:
                raise ConnectionFault(f"too many frames {self._of}", http2.ENHANCE_YOUR_CALM)
            self._at = now
            self.left = min(self._most, self.left + earned)


class FrameLimits:
    """Counts the frames that a client sends.

    Calls earn credit for a frame that resets them. Frames with data cost nothing unless they are
    small and many. All other frames take credit, which grows with time and with responses.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._credit = _Credit(CREDIT, CREDIT_PER_S, "without data", clock)
        self._small = _Credit(SMALL_CREDIT, SMALL_PER_S, "with little data", clock)

    def count(self, kind: int, size: int) -> None:
        """Count a frame, of this size without its header.

        Raises:
            ConnectionFault: there are too many of them.
        """
        if kind == http2.HEADERS:
            self._earn(1)
        elif kind != http2.DATA or not size:
            self._credit.take(_ACKNOWLEDGED_COST if kind in (http2.PING, http2.SETTINGS) else 1)
        elif size <= SMALL_BYTES:
            self._small.take(1)

    def count_refused(self, surplus: int) -> None:
        """Count a call that is refused as its header block has so many fields too many."""
        self._credit.take(_REFUSED_COST + surplus // _SURPLUS)

    def respond(self, size: int) -> None:
        """Count bytes sent to the client."""
        self._earn(_EARNED_BY_RESPONSE + size // _RESPONSE_BYTES)

    def _earn(self, credit: int) -> None:
        if self._credit.left < CREDIT:
            self._credit.left += credit
