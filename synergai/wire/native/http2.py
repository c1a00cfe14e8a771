"""Frames of HTTP/2 (RFC 9113): their parts, and what makes one invalid."""

from __future__ import annotations

import struct
from typing import Final

from synergai.errors import InvalidInput

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
