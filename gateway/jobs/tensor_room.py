"""Memory for tensors of jobs, which the most urgent job gets first."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.domain import Job

    Urgency = tuple[int, float, float]


class TensorRoom:
    """Room for `limit_bytes` of tensors, unless a single query needs more."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0
        self._numbers = count()
        self._waiting: list[tuple[Urgency, int, int, asyncio.Future[None]]] = []

    async def take(self, job: Job, size: int) -> None:
        """Wait until there is room for a query of a job, and take it."""
        if self.try_take(size):
            return
        granted = asyncio.get_running_loop().create_future()
        urgency = -job.priority, job.deadline, job.arrival
        heapq.heappush(self._waiting, (urgency, next(self._numbers), size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            self.give(0 if granted.cancelled() else size)  # also to those that waited behind it
            raise

    def try_take(self, size: int) -> bool:
        """Take room if there is some, and no other job waits for it; return whether there was."""
        if self._waiting or not self._fits(size):
            return False
        self.used_bytes += size
        return True

    def give(self, size: int) -> None:
        """Give room back."""
        self.used_bytes -= size
        while self._waiting:
            _, _, wanted, granted = self._waiting[0]
            if not granted.cancelled():
                if not self._fits(wanted):
                    return
                self.used_bytes += wanted
                granted.set_result(None)
            heapq.heappop(self._waiting)

    def _fits(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self._limit_bytes
