"""Limits on the frames that a client of HTTP/2 may send on one connection.

What a call may carry is limited elsewhere; this is about what it costs to refuse one, such as a
header block of 16 KB that repeats a single field, and about frames that belong to no call.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FIELDS: Final = 128
"""Header fields of a call."""
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
"""Bytes sent to a client that earn one more frame.

It acknowledges each message with two frames, and many messages may be sent together.
"""
_ACKNOWLEDGED_COST: Final = 4
"""Credit of a frame that the server acknowledges, which is more than the acknowledgement earns."""
_HEADER: Final = 9
_MAX_BLOCK: Final = 16384
"""Bytes of header fields that gRPC accepts at most."""
_KNOWN_BYTES: Final = 128
"""Largest block that is remembered as well-formed."""
_DATA, _HEADERS, _SETTINGS, _PING, _CONTINUATION = 0x0, 0x1, 0x4, 0x6, 0x9
_END_HEADERS, _PADDED, _PRIORITY = 0x4, 0x8, 0x20


class Http2Limits:
    """Counts the frames that a client sends.

    Calls are limited by the caller, and earn credit for a frame that resets them. Frames with data
    cost nothing unless they are small and many. All other frames take credit, which grows with time
    and with responses.

    Args:
        clock: monotonic seconds.

    Attributes:
        begun: calls that the client began in what was received last.
        held: whether another call followed them.
    """

    __slots__ = (
        "_clock",
        "_credit",
        "_credited_at",
        "_preface",
        "_skip",
        "_small",
        "_small_at",
        "begun",
        "held",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.begun = 0
        self.held = False
        self._clock = clock
        self._credit = CREDIT
        self._small = SMALL_CREDIT
        self._credited_at = self._small_at = clock()
        self._preface = PREFACE
        self._skip = 0

    def receive(self, data: bytes, calls: int) -> int:
        """Count the frames in the next bytes from the client.

        Args:
            data: the bytes, which begin with those that were not counted before.
            calls: most calls to begin.

        Returns:
            How many bytes were counted: up to the next call beyond `calls`, or the beginning of a
            frame that is incomplete.
        """
        at, end = self._skip, len(data)
        self.begun, self.held = 0, False
        if self._preface:
            at = self._read_preface(data)
        while at + _HEADER <= end:
            length, kind = data[at] << 16 | data[at + 1] << 8 | data[at + 2], data[at + 3]
            if kind in (_HEADERS, _CONTINUATION):
                if length > _MAX_BLOCK:
                    raise InvalidInput(f"a header block of {length:,} bytes")
                if at + _HEADER + length > end:
                    break
                if self.begun == calls:
                    self.held = True
                    break
                _check_block(data, at, length)
                self.begun += 1
                if self._credit < CREDIT:
                    self._credit += 1
            elif kind != _DATA or not length:
                self._credit -= _ACKNOWLEDGED_COST if kind in (_PING, _SETTINGS) else 1
                if self._credit < 0:
                    self._wait_credit()
            elif length <= SMALL_BYTES:
                self._small -= 1
                if self._small < 0:
                    self._wait_small()
            at += _HEADER + length
        self._skip = max(0, at - end)
        return min(at, end)

    def skip(self, size: int) -> None:
        """Count bytes within a frame."""
        self._skip -= size

    def respond(self, size: int) -> None:
        """Count bytes sent to the client."""
        if self._credit < CREDIT:
            self._credit += _EARNED_BY_RESPONSE + size // _RESPONSE_BYTES

    def _read_preface(self, data: bytes) -> int:
        """Return where the frames begin."""
        expected = self._preface
        received = data[: len(expected)]
        if not expected.startswith(received):
            raise InvalidInput("no HTTP/2")
        self._preface = expected[len(received) :]
        return len(received)

    def _wait_credit(self) -> None:
        now = self._clock()
        earned = int((now - self._credited_at) * CREDIT_PER_S)
        if self._credit + earned < 0:
            raise InvalidInput("too many frames without data")
        self._credited_at = now
        self._credit = min(CREDIT, self._credit + earned)

    def _wait_small(self) -> None:
        now = self._clock()
        earned = int((now - self._small_at) * SMALL_PER_S)
        if earned < 1:
            raise InvalidInput("too many frames with little data")
        self._small_at = now
        self._small = min(SMALL_CREDIT, self._small + earned)


def _check_block(data: bytes, at: int, length: int) -> None:
    """Check the header block of a frame."""
    kind, flags, start = data[at + 3], data[at + 4], at + _HEADER
    # Clients send a second frame only for blocks that are larger than gRPC accepts.
    if kind == _CONTINUATION or not flags & _END_HEADERS:
        raise InvalidInput("a header block of several frames")
    end = start + length
    try:
        if flags & _PADDED:
            end -= data[start]
            start += 1
        if flags & _PRIORITY:
            start += 5
    except IndexError:
        raise InvalidInput("a malformed header block") from None
    block = data[start:end]
    if start > end:
        raise InvalidInput("a malformed header block")
    check = _check_known if len(block) <= _KNOWN_BYTES else _check_fields
    check(block)


def _check_fields(block: bytes) -> None:
    fields = at = 0
    try:
        while at < len(block):
            at = _skip_field(block, at)
            fields += 1
            if fields > MAX_FIELDS:
                raise InvalidInput(f"a call with more than {MAX_FIELDS} header fields")
    except IndexError:
        raise InvalidInput("a malformed header block") from None
    if at > len(block):  # the last field is incomplete
        raise InvalidInput("a malformed header block")


# Clients repeat their blocks, most of which refer to the table of HPACK.
_check_known: Final = lru_cache(maxsize=256)(_check_fields)


def _skip_field(block: bytes, at: int) -> int:
    """Return where the field of HPACK (RFC 7541, 6) at a position ends."""
    first = block[at]
    if first & 0x80:
        return _read_integer(block, at, 0x7F)[1]
    if first & 0xE0 == 0x20:
        return _read_integer(block, at, 0x1F)[1]
    name, at = _read_integer(block, at, 0x3F if first & 0x40 else 0x0F)
    for _ in range(1 if name else 2):
        length, at = _read_integer(block, at, 0x7F)
        at += length
    return at


def _read_integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return an integer (RFC 7541, 5.1), and where it ends."""
    value = block[at] & prefix
    at += 1
    if value < prefix:
        return value, at
    for shift in range(0, 28, 7):
        value += (block[at] & 0x7F) << shift
        at += 1
        if block[at - 1] < 0x80:
            return value, at
    raise IndexError
