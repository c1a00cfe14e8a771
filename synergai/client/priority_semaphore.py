"""How many single queries of a client are on their way at a time."""

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


class Gate:
    """Lets so many through at once; of those who wait, the first by priority, then by deadline.

    A gateway refuses what it cannot hold. A client with ten thousand queries at once therefore
    keeps most of them to itself, where they cost a few hundred bytes each.

    Args:
        limit: how many may be inside.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._numbers = count()
        self._waiting: list[tuple[int, float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def passed(
        self, priority: int, seconds: float | None
    ) -> AsyncGenerator[float | None, None]:
        """Be inside for the block; yields what is left of `seconds` then, None if they are None.

        Args:
            priority: 0 to 9 (first).
            seconds: until the deadline.

        Raises:
            DeadlineExceeded: it passed on the way in.
        """
        left = seconds
        if self._free and not self._waiting:
            self._free -= 1
        else:
            left = await self._wait(priority, seconds)
        try:
            yield left
        finally:
            self._leave()

    async def _wait(self, priority: int, seconds: float | None) -> float | None:
        loop = asyncio.get_running_loop()
        deadline = math.inf if seconds is None else loop.time() + seconds
        turn = loop.create_future()
        heapq.heappush(self._waiting, (-priority, deadline, next(self._numbers), turn))
        try:
            async with asyncio.timeout_at(None if seconds is None else deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was our turn, and nobody came
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(
                    f"the query's {seconds:g} s passed while others of this client were under way"
                ) from None
            raise
        return None if seconds is None else deadline - loop.time()

    def _leave(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[3]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
