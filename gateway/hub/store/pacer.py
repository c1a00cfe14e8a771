"""Pace of transfers, so that they leave time to requests and jobs.

The transfers of all workers and clients share one rate. While anything runs on a worker, it is low
enough that most requests never meet a chunk in the gateway's loop, on the wire or in an agent.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BYTES_PER_S: Final = 128 << 20
"""Rate of all uploads to the store and all fetches of agents together."""
BUSY_BYTES_PER_S: Final = 6 << 20
"""Rate of transfers while the fleet is busy."""
_BURST_S: Final = 0.05
"""Time that transfers may be ahead, which makes up for timers that fire late."""
_TURN_BYTES: Final = 256 << 10
"""Largest number of bytes of a turn, so that large chunks get no larger share."""
_LOOK_S: Final = 0.01
"""Interval at which transfers check whether the fleet is busy."""
_STAYS_BUSY_S: Final = 1.0
"""Time for which a fleet is treated as busy after it was: single requests leave gaps."""


class Pacer:
    """Delays transfers to a common rate, in turns; a rate of 0 is no limit."""

    def __init__(
        self,
        bytes_per_s: float,
        busy_bytes_per_s: float,
        is_busy: Callable[[], bool],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s or math.inf
        self._busy_bytes_per_s = min(busy_bytes_per_s or math.inf, self._bytes_per_s)
        self._is_busy = is_busy
        self._now = now
        self._sleep = sleep
        self._free_at = 0.0
        self._look_at = self._busy_until = -math.inf
        self._turn = asyncio.Lock()

    async def wait_turn(self, size: int) -> None:
        """Wait until `size` bytes may be transferred."""
        while size > 0:
            part = min(size, _TURN_BYTES)
            size -= part
            # Only the transfer whose turn it is waits for the rate, so giving up delays no other.
            async with self._turn:
                wait_s = self._free_at - self._now()
                if wait_s > 0:
                    await self._sleep(wait_s)
                now = self._now()
                start = max(self._free_at, now - _BURST_S)
                self._free_at = start + part / self._rate(now)

    def _rate(self, now: float) -> float:
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            if self._is_busy():
                self._busy_until = now + _STAYS_BUSY_S
        return self._busy_bytes_per_s if now < self._busy_until else self._bytes_per_s
