"""Frames of HTTP/2 (RFC 9113), and limits on those that carry little."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.wire.request_codec import Buffer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends before its frames."""
MAX_FRAME: Final = 16384
"""Bytes of a frame after its header, unless a setting allows more."""
DEFAULT_WINDOW: Final = 65_535
MAX_NUMBER: Final = (1 << 31) - 1
"""Largest window, and largest number of a stream."""
HEADER_BYTES: Final = 9
HEADER: Final = struct.Struct(">IBI")
"""Length with the kind as its last byte, flags, and stream."""
SETTING: Final = struct.Struct(">HI")
NUMBER: Final = struct.Struct(">I")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 2, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11
_OF_CONNECTION: Final = frozenset((SETTINGS, PING, GOAWAY))
_PRIORITY_BYTES: Final = 5
_SETTINGS: Final = {
    ENABLE_PUSH: (0, 1, PROTOCOL_ERROR),
    INITIAL_WINDOW_SIZE: (0, MAX_NUMBER, FLOW_CONTROL_ERROR),
    MAX_FRAME_SIZE: (MAX_FRAME, (1 << 24) - 1, PROTOCOL_ERROR),
}
"""Range of settings, and the error of others (6.5.2)."""
_SIZES: Final = {PRIORITY: _PRIORITY_BYTES, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}


class ConnectionFault(InvalidInput):
    """What a client has done that ends its connection (RFC 9113, 5.4.1).

    Attributes:
        code: the error code of its GOAWAY.
    """

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """Return a frame."""
    return b"".join((HEADER.pack(len(payload) << 8 | kind, flags, stream), payload))


def block_frames(flags: int, stream: int, block: bytes) -> bytes:
    """Return the frames of a header block, whose first one has these flags."""
    size = len(block)
    if size <= MAX_FRAME:
        return HEADER.pack(size << 8 | HEADERS, flags | END_HEADERS, stream) + block
    frames = [frame(HEADERS, flags, stream, block[:MAX_FRAME])]
    for start in range(MAX_FRAME, size, MAX_FRAME):
        end = start + MAX_FRAME
        ends = END_HEADERS if end >= size else 0
        frames.append(frame(CONTINUATION, ends, stream, block[start:end]))
    return b"".join(frames)


def number_frame(kind: int, stream: int, number: int) -> bytes:
    """Return a frame with a number: the growth of a window, or the code of a reset."""
    return frame(kind, 0, stream, NUMBER.pack(number))


def check_frame(kind: int, number: int, size: int) -> None:
    """Raise a `ConnectionFault` if a frame may not be on this stream, or have this size."""
    is_free = kind > CONTINUATION or kind in (WINDOW_UPDATE, RST_STREAM)  # HAProxy resets stream 0
    if not is_free and bool(number) is (kind in _OF_CONNECTION):
        raise ConnectionFault(f"a frame of type {kind} on stream {number}")
    if size != _SIZES.get(kind, size) or (kind == GOAWAY and size < 2 * NUMBER.size):
        raise ConnectionFault(f"a frame of type {kind} with {size:,} bytes", FRAME_SIZE_ERROR)


def padding_of(kind: int, flags: int, size: int, first: int) -> tuple[int, int]:
    """Return how many bytes precede and follow the data or block in a frame of this size.

    These are the padding, whose length is the first byte of the frame, and the priority.
    """
    before = behind = 0
    if flags & PADDED:
        before, behind = 1, first
    if kind == HEADERS and flags & WITH_PRIORITY:
        before += _PRIORITY_BYTES
    if before + behind > size:
        code = FRAME_SIZE_ERROR if before > size else PROTOCOL_ERROR
        raise ConnectionFault("a frame that is shorter than its padding and priority", code)
    return before, behind


def initial_window(flags: int, payload: bytes, window: int) -> int:
    """Return the window of streams that settings name, or else the one that there is."""
    if len(payload) % SETTING.size or (flags & ACK and payload):
        raise ConnectionFault(f"settings of {len(payload):,} bytes", FRAME_SIZE_ERROR)
    for key, value in SETTING.iter_unpack(payload):
        least, most, code = _SETTINGS.get(key, (0, value, PROTOCOL_ERROR))
        if not least <= value <= most:
            raise ConnectionFault(f"the value {value:,} of setting {key}", code)
        if key == INITIAL_WINDOW_SIZE:
            window = value
    return window


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
                raise ConnectionFault(f"too many frames {self._of}", ENHANCE_YOUR_CALM)
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
        if kind == HEADERS:
            self._earn(1)
        elif kind != DATA or not size:
            self._credit.take(_ACKNOWLEDGED_COST if kind in (PING, SETTINGS) else 1)
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
