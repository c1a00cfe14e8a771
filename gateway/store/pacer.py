"""Pace of transfers, so that they leave time to requests.

The transfers of all workers and clients share one rate. At any time most of it is unused CPU: a
request then seldom meets a chunk in the gateway's loop, on the wire or in an agent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_BURST_S: Final = 0.05
"""Time that transfers may be ahead, which makes up for timers that fire late."""


class Pacer:
    """Delays transfers to a common rate, in the order in which they ask.

    Args:
        bytes_per_s: the rate; 0 for no limit.
        now: monotonic seconds.
        sleep: sleeps for the given number of seconds.
    """

    def __init__(
        self,
        bytes_per_s: float,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._now = now
        self._sleep = sleep
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may be transferred."""
        if not self._bytes_per_s:
            return
        now = self._now()
        start = max(self._free_at, now - _BURST_S)
        self._free_at = start + size / self._bytes_per_s
        if start > now:
            await self._sleep(start - now)
