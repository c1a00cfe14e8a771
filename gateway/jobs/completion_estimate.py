"""Estimate of a job's completion, from its first assignments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.domain import WorkerId
    from synergai.scheduling.events import Assignment


class CompletionEstimate:
    """Estimated completion of a job, from the assignments dispatched at one instant.

    Queries that are not dispatched yet, because their tensors have not arrived or other workers
    will join in, are assumed to run on the same workers.

    Args:
        queries: number of queries left to run.
    """

    def __init__(self, queries: int) -> None:
        self._left = queries
        self._known = True
        self._ends: dict[WorkerId, tuple[float, float]] = {}

    def add(self, assignment: Assignment) -> None:
        """Add an assignment dispatched at this instant."""
        self._left -= assignment.count
        self._known = self._known and assignment.estimate_s > 0
        self._ends[assignment.worker_id] = (assignment.estimate_s, assignment.query_s)

    @property
    def seconds(self) -> float | None:
        """Seconds from this instant to completion; None if there is no estimate."""
        ends = sorted(self._ends.values())
        if not self._known or not ends:
            return None
        until, _ = ends[-1]
        if self._left <= 0:
            return until
        if not all(query_s > 0 for _, query_s in ends):
            return None
        # The workers that run the remaining queries finish together: those that are free by then.
        rate = work = 0.0
        together = math.inf
        for end, query_s in ends:
            if end >= together:
                break
            rate += 1 / query_s
            work += end / query_s
            together = (self._left + work) / rate
        return max(until, together)
