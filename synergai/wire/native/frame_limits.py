"""Limits on the frames that a client may send on one connection and that carry little.

Calls and their data are limited elsewhere.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from synergai.wire.native import http2
from synergai.wire.native.http2 import DATA, HEADERS, ConnectionFault

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
        if kind == HEADERS:
            self._earn(1)
        elif kind != DATA or not size:
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
