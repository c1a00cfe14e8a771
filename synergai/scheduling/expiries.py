"""The deadlines of those who wait on the line."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.scheduling.state import JobRecord


class Expiries:
    """Perishable jobs by deadline.

    A job that ends stays in the heap until its deadline is the next one, or until the heap is
    mostly of such jobs: most end long before, and to find each of them would cost more.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, JobRecord]] = []

    def add(self, job: JobRecord, alive: int) -> None:
        """Watch a job's deadline.

        Args:
            job: whose.
            alive: how many jobs are in the system, this one included.
        """
        heapq.heappush(self._heap, (job.job.deadline, job.sequence, job))
        if len(self._heap) > 4 * alive + 16:
            self._heap = [entry for entry in self._heap if not entry[2].gone]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[JobRecord]:
        """The jobs in the system whose deadline is over; each of them once."""
        due: list[JobRecord] = []
        while self._heap and self._heap[0][0] <= now:
            job = heapq.heappop(self._heap)[2]
            if not job.gone:
                due.append(job)
        return due

    def next(self) -> float:
        """The next deadline of a job in the system; infinite if there is none."""
        while self._heap and self._heap[0][2].gone:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf
