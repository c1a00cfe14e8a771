"""Frames of HTTP/2 (RFC 9113)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from synergai.protocol.request_codec import Buffer

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends before its frames."""
MAX_FRAME: Final = 16384
"""Bytes of a frame after its header, unless a setting allows more."""
DEFAULT_WINDOW: Final = 65_535
MAX_NUMBER: Final = (1 << 31) - 1
"""Largest window, and largest number of a stream."""
HEADER_BYTES: Final = 9
HEADER: Final = struct.Struct(">HBBBI")
"""Length, its last byte apart, kind, flags and stream."""
SETTING: Final = struct.Struct(">HI")
NUMBER: Final = struct.Struct(">I")

DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 0, 1, 3, 5
REFUSED_STREAM, CANCEL = 7, 8


def header(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the header of a frame."""
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """Return a frame."""
    return b"".join((header(len(payload), kind, flags, stream), payload))


def unpadded(payload: Buffer) -> Buffer:
    """Return a padded payload without its padding.

    Raises:
        InvalidInput: it is malformed.
    """
    if not payload or payload[0] >= len(payload):
        raise InvalidInput("malformed padding")
    return payload[1 : len(payload) - payload[0]]
