"""Semaphore that wakes its waiters in order of priority and deadline."""

from __future__ import annotations

import asyncio
import heapq
import math
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

from synergai.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class PrioritySemaphore:
    """Bounds the queries in flight; waiters are ordered by priority, deadline and arrival.

    A gateway rejects queries beyond its capacity, so a client with ten thousand queries keeps
    most of them waiting here, at a few hundred bytes each.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._sequence = count()
        self._waiters: list[tuple[int, float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def acquire(
        self, priority: int, seconds: float | None
    ) -> AsyncGenerator[float | None, None]:
        """Hold a slot for the duration of the block; yield what remains of `seconds`."""
        remaining = seconds
        if self._free and not self._waiters:
            self._free -= 1
        else:
            remaining = await self._wait(priority, seconds)
        try:
            yield remaining
        finally:
            self._release()

    async def _wait(self, priority: int, seconds: float | None) -> float | None:
        loop = asyncio.get_running_loop()
        deadline = math.inf if seconds is None else loop.time() + seconds
        waiter = loop.create_future()
        heapq.heappush(self._waiters, (-priority, deadline, next(self._sequence), waiter))
        try:
            async with asyncio.timeout_at(None if seconds is None else deadline):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._release()  # the slot was granted to a waiter that no longer wants it
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"the query's deadline of {seconds:g} s passed while it waited for other "
                    "queries of this client"
                ) from None
            raise
        return None if seconds is None else deadline - loop.time()

    def _release(self) -> None:
        while self._waiters:
            waiter = heapq.heappop(self._waiters)[3]
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1
