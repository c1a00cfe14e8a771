"""Limits on the frames that a client may send on one connection and that carry little.

Calls and their data are limited elsewhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from synergai.wire.native import http2
from synergai.wire.native.http2 import ENHANCE_YOUR_CALM, ConnectionFault

if TYPE_CHECKING:
    from collections.abc import Callable

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
_ACKNOWLEDGED_COST: Final = 4
"""Credit of a frame that the server acknowledges: more than the acknowledgement earns."""


class FrameLimits:
    """Counts the frames that a client sends.

    Calls earn credit for a frame that resets them. Frames with data cost nothing unless they are
    small and many. All other frames take credit, which grows with time and with responses.

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
            ConnectionFault: there are too many of them.
        """
        if kind == http2.HEADERS:
            if self._credit < CREDIT:
                self._credit += 1
        elif kind != http2.DATA or not size:
            self._credit -= _ACKNOWLEDGED_COST if kind in (http2.PING, http2.SETTINGS) else 1
            if self._credit < 0:
                self._wait_credit()
        elif size <= SMALL_BYTES:
            self._small -= 1
            if self._small < 0:
                self._wait_small()

    def count_refused(self) -> None:
        """Count a call that was refused as its header block is too large."""
        self._credit -= _REFUSED_COST
        if self._credit < 0:
            self._wait_credit()

    def respond(self, size: int) -> None:
        """Count bytes sent to the client."""
        if self._credit < CREDIT:
            self._credit += _EARNED_BY_RESPONSE + size // _RESPONSE_BYTES

    def _wait_credit(self) -> None:
        now = self._clock()
        earned = int((now - self._credited_at) * CREDIT_PER_S)
        if self._credit + earned < 0:
            raise ConnectionFault("too many frames without data", ENHANCE_YOUR_CALM)
        self._credited_at = now
        self._credit = min(CREDIT, self._credit + earned)

    def _wait_small(self) -> None:
        now = self._clock()
        earned = int((now - self._small_at) * SMALL_PER_S)
        if earned < 1:
            raise ConnectionFault("too many frames with little data", ENHANCE_YOUR_CALM)
        self._small_at = now
        self._small = min(SMALL_CREDIT, self._small + earned)
