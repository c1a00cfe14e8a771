"""Deadlines of perishable jobs."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.scheduling.state.records import JobRecord


class Expiries:
    """Heap of perishable jobs by deadline, with lazy deletion.

    Most jobs end long before their deadline. Their entries stay in the heap until they reach its
    top, or until stale entries dominate it and the heap is rebuilt.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, JobRecord]] = []

    def add(self, job: JobRecord, active_jobs: int) -> None:
        """Watch a job's deadline.

        Args:
            job: the job to expire.
            active_jobs: number of jobs in the system, this one included.
        """
        heapq.heappush(self._heap, (job.job.deadline, job.sequence, job))
        if len(self._heap) > 4 * active_jobs + 16:
            self._heap = [entry for entry in self._heap if not entry[2].removed]
            heapq.heapify(self._heap)

    def due(self, now: float) -> list[JobRecord]:
        """Remove and return the active jobs whose deadline has passed."""
        due: list[JobRecord] = []
        while self._heap and self._heap[0][0] <= now:
            job = heapq.heappop(self._heap)[2]
            if not job.removed:
                due.append(job)
        return due

    def next_deadline(self) -> float:
        """Return the earliest deadline of an active job; infinite if there is none."""
        while self._heap and self._heap[0][2].removed:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf
