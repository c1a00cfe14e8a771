"""Rules of RFC 9113 and RFC 7541 for servers, each with frames that try it.

These are the cases of h2spec, and some that it lacks. The frames use stream 1, which `moved`
changes, and are sent behind legal ones. Where gRPC servers do otherwise than the section says, the
rule has the reason.
"""

import struct
from typing import Final, NamedTuple

from tests import http2
from tests.gate.conversation import settings
from tests.gate.service import ECHO, WAIT
from tests.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
)

ANSWERED: Final = "status 0"
IGNORED: Final = "ignored"
REFUSED: Final = "refused"
"""The call is malformed (8.1.1): it ends with a status or a reset of type PROTOCOL_ERROR."""
BAD_PROTOCOL, BAD_WINDOW, BAD_SIZE, BAD_TABLE = "GOAWAY 1", "GOAWAY 3", "GOAWAY 6", "GOAWAY 9"
RESET_PROTOCOL, RESET_WINDOW, RESET_CLOSED, RESET_REFUSED = (
    f"RST_STREAM {code}" for code in (1, 3, 5, 7)
)
CALLS: Final = 256
"""Calls at a time on one connection."""


class Rule(NamedTuple):
    """A rule.

    Attributes:
        section: of RFC 9113, or ``H`` and the section of RFC 7541.
        sent: what is sent.
        frames: the same, on stream 1.
        outcome: what the server does.
        reason: why it does not do what the section says; empty if it does.
        stream: the stream that the outcome is about.
    """

    section: str
    sent: str
    frames: bytes
    outcome: str
    reason: str = ""
    stream: int = 1


def moved(frames: bytes, by: int) -> bytes:
    """Return frames on other streams: their numbers are higher by this number."""
    data, at = bytearray(frames), 0
    while at < len(data):
        high, low, _, _, stream = struct.unpack_from(">HBBBI", data, at)
        if stream & 0x7FFFFFFF:
            struct.pack_into(">I", data, at + 5, stream + by)
        at += http2.HEADER_BYTES + (high << 8 | low)
    return bytes(data)


# --- frames -------------------------------------------------------------------------------------


def _block(*more: tuple[str, str], path: str = ECHO) -> bytes:
    return http2.encoded((*http2.call_fields(path), *more))


def _open(block: bytes, flags: int = END_HEADERS, stream: int = 1) -> bytes:
    return frame(HEADERS, flags, stream, block)


def _call(block: bytes, stream: int = 1) -> bytes:
    return _open(block, stream=stream) + http2.message(stream, b"x")


def _with(*more: tuple[str, str]) -> bytes:
    """Return a call with further fields."""
    return _call(_block(*more))


def _of(name: str, *values: str) -> bytes:
    """Return a call with these values of a field, or without it."""
    fields = [each for each in http2.call_fields(ECHO) if each[0] != name]
    return _call(http2.encoded([*((name, value) for value in values), *fields]))


def _setting(key: int, value: int) -> bytes:
    return settings({key: value})


def _window(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", more))


_NUMBER: Final = bytes(4)
_MOST: Final = (1 << 31) - 1
_TOO_LARGE: Final = bytes((1 << 20) + 1)
_WEIGHT: Final = struct.pack(">IB", 0, 15)
_ITSELF: Final = struct.pack(">IB", 1, 15)
_BLOCK: Final = _block()
_FIELD: Final = http2.encoded([("x", "y")])
_MESSAGE: Final = struct.pack(">BI", 0, 1) + b"x"
_TRAILING: Final = END_HEADERS | END_STREAM
CALL: Final = _call(_BLOCK)
_OPENED: Final = _open(_BLOCK)
_BEGUN: Final = _open(_BLOCK, 0)
_HALF_CLOSED: Final = _call(_block(path=WAIT))
_RESET: Final = _OPENED + http2.reset(1)
_PRIORITY: Final = frame(PRIORITY, 0, 1, _WEIGHT)
_UNKNOWN: Final = frame(0xEE, 0xFF, 0, b"x")
_REST: Final = frame(CONTINUATION, END_HEADERS, 1, _FIELD)
_LARGE: Final = struct.pack(">BI", 0, 16_379) + bytes(16_379)
_WITH_BIT: Final = _OPENED[:5] + b"\x80" + _OPENED[6:]

# --- reasons ------------------------------------------------------------------------------------

_MAY_BE_LATE: Final = (
    "a client may send it before it learns that the server has ended the call, and the server does "
    "not remember who ended it"
)
_NO_PRIORITIES: Final = "RFC 9113 does not use the priorities of RFC 7540 any more"

RULES: Final = (
    # Frames
    Rule("3.4", "a call", CALL, ANSWERED),
    Rule("4.1", "a frame of an unknown type", _UNKNOWN + CALL, ANSWERED),
    Rule("4.1", "a PING with unknown flags", frame(PING, 0xFE, 0, bytes(8)) + CALL, ANSWERED),
    Rule("4.1", "the reserved bit", _WITH_BIT + http2.message(1, b"x"), ANSWERED),
    Rule(
        "4.2",
        "DATA of 16,384 bytes",
        _OPENED + frame(DATA, END_STREAM, 1, _LARGE),
        ANSWERED,
    ),
    Rule("4.2", "DATA of too many bytes", _OPENED + frame(DATA, 0, 1, _TOO_LARGE), BAD_SIZE),
    Rule("4.2", "HEADERS of too many bytes", _open(_TOO_LARGE), BAD_SIZE),
    Rule("4.3", "a block that is not HPACK", _open(b"\x40\x7f" + b"\xff" * 9), BAD_TABLE),
    Rule("4.3", "PRIORITY within a block", _BEGUN + _PRIORITY, BAD_PROTOCOL),
    Rule("4.3", "another HEADERS within a block", _BEGUN + _open(_BLOCK, stream=3), BAD_PROTOCOL),
    # States
    Rule("5.1", "DATA, idle", http2.message(1, b"x"), BAD_PROTOCOL),
    Rule(
        "5.1",
        "RST_STREAM, idle",
        http2.reset(3) + CALL,
        ANSWERED,
        "grpc-java resets calls that it did not send because of their size",
    ),
    Rule("5.1", "WINDOW_UPDATE, idle", _window(1, 1), BAD_PROTOCOL),
    Rule("5.1", "CONTINUATION, idle", _REST, BAD_PROTOCOL),
    Rule("5.1", "DATA, half-closed", _HALF_CLOSED + frame(DATA, 0, 1, b"x"), RESET_CLOSED),
    Rule("5.1", "HEADERS, half-closed", _HALF_CLOSED + _open(_FIELD, _TRAILING), RESET_CLOSED),
    Rule("5.1", "CONTINUATION, half-closed", _HALF_CLOSED + _REST, BAD_PROTOCOL),
    Rule("5.1", "DATA, reset", _RESET + http2.message(1, b"x"), IGNORED, _MAY_BE_LATE),
    Rule("5.1", "HEADERS, reset", _RESET + _open(_FIELD, _TRAILING), IGNORED, _MAY_BE_LATE),
    Rule("5.1", "CONTINUATION, reset", _RESET + _REST, BAD_PROTOCOL),
    Rule("5.1", "PRIORITY, reset", _RESET + _PRIORITY, IGNORED),
    Rule("5.1", "WINDOW_UPDATE, reset", _RESET + _window(1, 1), IGNORED),
    Rule("5.1", "RST_STREAM, reset", _RESET + http2.reset(1), IGNORED),
    Rule("5.1.1", "an even stream", _call(_BLOCK, 2), BAD_PROTOCOL),
    Rule("5.1.1", "a stream below the last one", _call(_BLOCK, 5) + _call(_BLOCK, 3), BAD_PROTOCOL),
    Rule("5.1.1", "a stream far above the last one", _call(_BLOCK, 999), ANSWERED, stream=999),
    Rule(
        "5.1.2",
        "more calls at a time than announced",
        b"".join(_open(_block(path=WAIT), stream=each) for each in range(1, 2 * CALLS + 2, 2))
        + http2.reset(1),
        RESET_REFUSED,
        stream=2 * CALLS + 1,
    ),
    Rule(
        "5.3.1",
        "HEADERS that depend on themselves",
        _open(_ITSELF + _BLOCK, END_HEADERS | WITH_PRIORITY) + http2.message(1, b"x"),
        ANSWERED,
        _NO_PRIORITIES,
    ),
    Rule(
        "5.3.1",
        "PRIORITY that depends on itself",
        frame(PRIORITY, 0, 1, _ITSELF) + CALL,
        ANSWERED,
        _NO_PRIORITIES,
    ),
    Rule("5.5", "an unknown frame within a block", _BEGUN + _UNKNOWN, BAD_PROTOCOL),
    # DATA, HEADERS, PRIORITY, RST_STREAM
    Rule("6.1", "DATA on stream 0", frame(DATA, 0, 0, b"x"), BAD_PROTOCOL),
    Rule("6.1", "too much padding", _OPENED + frame(DATA, PADDED, 1, b"\x05x"), BAD_PROTOCOL),
    Rule("6.1", "padding without length", _OPENED + frame(DATA, PADDED, 1), BAD_SIZE),
    Rule(
        "6.1",
        "padded DATA",
        _OPENED + frame(DATA, PADDED | END_STREAM, 1, b"\x03" + _MESSAGE + bytes(3)),
        ANSWERED,
    ),
    Rule(
        "6.2",
        "padded HEADERS with priority",
        _open(b"\x03" + _WEIGHT + _BLOCK + bytes(3), END_HEADERS | PADDED | WITH_PRIORITY)
        + http2.message(1, b"x"),
        ANSWERED,
    ),
    Rule("6.2", "HEADERS on stream 0", _open(_BLOCK, stream=0), BAD_PROTOCOL),
    Rule(
        "6.2", "too much padding", _open(b"\xff" + _BLOCK[:9], END_HEADERS | PADDED), BAD_PROTOCOL
    ),
    Rule("6.2", "a cut priority", _open(b"\0\0", END_HEADERS | WITH_PRIORITY), BAD_SIZE),
    Rule("6.3", "PRIORITY on stream 0", frame(PRIORITY, 0, 0, _WEIGHT), BAD_PROTOCOL),
    Rule("6.3", "PRIORITY of 4 bytes", frame(PRIORITY, 0, 1, _NUMBER), BAD_SIZE),
    Rule(
        "6.4",
        "RST_STREAM on stream 0",
        http2.reset(0) + CALL,
        ANSWERED,
        "HAProxy 2.6 so resets calls that it has not numbered yet, beside calls of other clients",
    ),
    Rule("6.4", "RST_STREAM of 3 bytes", _OPENED + frame(RST_STREAM, 0, 1, bytes(3)), BAD_SIZE),
    # SETTINGS
    Rule("6.5", "an acknowledgement with settings", frame(SETTINGS, ACK, 0, bytes(6)), BAD_SIZE),
    Rule("6.5", "SETTINGS on a stream", frame(SETTINGS, 0, 1), BAD_PROTOCOL),
    Rule("6.5", "SETTINGS of 3 bytes", frame(SETTINGS, 0, 0, bytes(3)), BAD_SIZE),
    Rule("6.5.2", "ENABLE_PUSH of 2", _setting(2, 2), BAD_PROTOCOL),
    Rule("6.5.2", "INITIAL_WINDOW_SIZE of 2^31", _setting(4, _MOST + 1), BAD_WINDOW),
    Rule("6.5.2", "MAX_FRAME_SIZE of 16,383", _setting(5, 16_383), BAD_PROTOCOL),
    Rule("6.5.2", "MAX_FRAME_SIZE of 2^24", _setting(5, 1 << 24), BAD_PROTOCOL),
    Rule("6.5.2", "an unknown setting", _setting(0x99, 1) + CALL, ANSWERED),
    Rule("6.5.3", "a setting twice", _setting(4, 0) + _setting(4, 9) + CALL, ANSWERED),
    # PUSH_PROMISE, PING, GOAWAY
    Rule("8.4", "PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), BAD_PROTOCOL),
    Rule("6.7", "an acknowledged PING", frame(PING, ACK, 0, bytes(8)) + CALL, ANSWERED),
    Rule("6.7", "PING on a stream", frame(PING, 0, 1, bytes(8)), BAD_PROTOCOL),
    Rule("6.7", "PING of 6 bytes", frame(PING, 0, 0, bytes(6)), BAD_SIZE),
    Rule("6.8", "GOAWAY on a stream", frame(GOAWAY, 0, 1, bytes(8)), BAD_PROTOCOL),
    Rule("6.8", "a cut GOAWAY", frame(GOAWAY, 0, 0, _NUMBER), BAD_SIZE),
    Rule(
        "7",
        "RST_STREAM of an unknown code",
        _OPENED + frame(RST_STREAM, 0, 1, b"\xee" * 4),
        IGNORED,
    ),
    # WINDOW_UPDATE
    Rule("6.9", "WINDOW_UPDATE of 0", _window(0, 0), BAD_PROTOCOL),
    Rule("6.9", "WINDOW_UPDATE of 0, stream", _OPENED + _window(1, 0), RESET_PROTOCOL),
    Rule("6.9", "WINDOW_UPDATE of 3 bytes", frame(WINDOW_UPDATE, 0, 0, bytes(3)), BAD_SIZE),
    Rule("6.9.1", "too large a window", _window(0, _MOST), BAD_WINDOW),
    Rule("6.9.1", "too large a window, stream", _OPENED + _window(1, _MOST), RESET_WINDOW),
    Rule(
        "6.9.2",
        "a setting that makes a window too large",
        _OPENED + _window(1, _MOST - 65_535) + _setting(4, 65_536),
        BAD_WINDOW,
    ),
    # CONTINUATION
    Rule(
        "6.10",
        "a block in many frames",
        _open(b"", 0)
        + b"".join(frame(CONTINUATION, 0, 1, bytes([each])) for each in _BLOCK)
        + frame(CONTINUATION, END_HEADERS, 1)
        + http2.message(1, b"x"),
        ANSWERED,
    ),
    Rule("6.10", "DATA within a block", _BEGUN + http2.message(1, b"x"), BAD_PROTOCOL),
    Rule(
        "6.10",
        "CONTINUATION on stream 0",
        _BEGUN + frame(CONTINUATION, END_HEADERS, 0, _FIELD),
        BAD_PROTOCOL,
    ),
    Rule("6.10", "CONTINUATION behind a block", _OPENED + _REST, BAD_PROTOCOL),
    Rule("6.10", "CONTINUATION behind a block of two", _BEGUN + _REST + _REST, BAD_PROTOCOL),
    Rule(
        "6.10",
        "CONTINUATION behind DATA",
        _OPENED + frame(DATA, 0, 1, b"\0") + _REST,
        BAD_PROTOCOL,
    ),
    # Calls
    Rule(
        "8.1",
        "trailers",
        _OPENED + frame(DATA, 0, 1, _MESSAGE) + _open(_FIELD, _TRAILING),
        ANSWERED,
    ),
    Rule("8.1", "a second HEADERS that does not end", _OPENED + _OPENED, REFUSED),
    Rule("8.1", "pseudo-headers in trailers", _OPENED + _open(_BLOCK, _TRAILING), REFUSED),
    Rule("8.1.1", "content-length of 1 for more", _with(("content-length", "1")), REFUSED),
    Rule(
        "8.1.1",
        "content-length of 1 for two DATA",
        _open(_block(("content-length", "1")))
        + frame(DATA, 0, 1, _MESSAGE[:3])
        + frame(DATA, END_STREAM, 1, _MESSAGE[3:]),
        REFUSED,
    ),
    Rule("8.1.1", "content-length of 6", _with(("content-length", "6")), ANSWERED),
    Rule("8.2.1", "upper case in a name", _with(("X-Name", "y")), REFUSED),
    Rule("8.2.1", "a space in a name", _with(("x name", "y")), REFUSED),
    Rule("8.2.1", "a colon in a name", _with(("x:name", "y")), REFUSED),
    Rule("8.2.1", "an empty name", _with(("", "y")), REFUSED),
    Rule("8.2.1", "a zero in a value", _with(("x", "a\0b")), REFUSED),
    Rule("8.2.1", "a line break in a value", _with(("x", "a\nb")), REFUSED),
    Rule("8.2.1", "a value of obs-text", _with(("x", "caf\udce9")), ANSWERED),
    Rule("8.2.2", "connection", _with(("connection", "keep-alive")), REFUSED),
    Rule("8.2.2", "te other than trailers", _of("te", "trailers, deflate"), REFUSED),
    Rule("8.3", "an unknown pseudo-header", _of(":test", "x"), REFUSED),
    Rule("8.3", "a pseudo-header of responses", _of(":status", "200"), REFUSED),
    Rule("8.3", "a pseudo-header behind a field", _call(_FIELD + _BLOCK), REFUSED),
    Rule("8.3.1", "no :method", _of(":method"), REFUSED),
    Rule("8.3.1", "no :scheme", _of(":scheme"), REFUSED),
    Rule("8.3.1", "no :path", _of(":path"), REFUSED),
    Rule("8.3.1", "an empty :path", _of(":path", ""), REFUSED),
    Rule("8.3.1", "two :method", _of(":method", "POST", "POST"), REFUSED),
    Rule("8.3.1", "two :scheme", _of(":scheme", "http", "http"), REFUSED),
    Rule("8.3.1", "two :path", _of(":path", ECHO, ECHO), REFUSED),
    Rule("8.3.1", "two :authority", _of(":authority", "a", "a"), REFUSED),
    Rule("8.3.1", "no :authority", _of(":authority"), ANSWERED),
    # HPACK
    Rule("H2.3.3", "an index beyond the tables", _open(_BLOCK + b"\xff\xff\x03"), BAD_TABLE),
    Rule("H4.2", "a table size at the end of a block", _open(_BLOCK + b"\x20"), BAD_TABLE),
    Rule("H5.1", "an integer without end", _open(_BLOCK + b"\xff" * 12), BAD_TABLE),
    Rule("H5.2", "a text beyond its block", _open(_BLOCK + b"\0\x01x\x7f"), BAD_TABLE),
    Rule("H5.2", "Huffman with long padding", _open(_BLOCK + b"\0\x01x\x82\x1f\xff"), BAD_TABLE),
    Rule("H5.2", "Huffman padded with zeros", _open(_BLOCK + b"\0\x01x\x81\x18"), BAD_TABLE),
    Rule(
        "H5.2",
        "Huffman with the end of a string",
        _open(_BLOCK + b"\0\x01x\x84\xff\xff\xff\xff"),
        BAD_TABLE,
    ),
    Rule("H6.1", "index 0", _open(_BLOCK + b"\x80"), BAD_TABLE),
    Rule("H6.3", "too large a table", _open(b"\x3f\xe2\x1f" + _BLOCK), BAD_TABLE),
)
