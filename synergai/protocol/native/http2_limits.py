"""Limits on the frames that a client of HTTP/2 may send on one connection.

What a call may carry is limited elsewhere; this is about what it costs to refuse one, such as a
header block of 16 KB that repeats a single field, and about frames that belong to no call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

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
_DATA, _HEADERS, _SETTINGS, _PING = 0x0, 0x1, 0x4, 0x6


class FrameLimits:
    """Counts the frames that a client sends.

    Calls are limited by the caller, and earn credit for a frame that resets them. Frames with data
    cost nothing unless they are small and many. All other frames take credit, which grows with time
    and with responses.

    Args:
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_credit", "_credited_at", "_small", "_small_at")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._credit = CREDIT
        self._small = SMALL_CREDIT
        self._credited_at = self._small_at = clock()

    def count(self, kind: int, size: int) -> None:
        """Count a frame, of this size without its header.

        Raises:
            InvalidInput: there are too many of them.
        """
        if kind == _HEADERS:
            if self._credit < CREDIT:
                self._credit += 1
        elif kind != _DATA or not size:
            self._credit -= _ACKNOWLEDGED_COST if kind in (_PING, _SETTINGS) else 1
            if self._credit < 0:
                self._wait_credit()
        elif size <= SMALL_BYTES:
            self._small -= 1
            if self._small < 0:
                self._wait_small()

    def respond(self, size: int) -> None:
        """Count bytes sent to the client."""
        if self._credit < CREDIT:
            self._credit += _EARNED_BY_RESPONSE + size // _RESPONSE_BYTES

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


def check_fields(block: bytes) -> None:
    """Check how many fields a header block has, which costs far less than to decode them.

    Raises:
        InvalidInput: they are too many, or malformed.
    """
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
