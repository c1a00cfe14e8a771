"""What a job is estimated to take, from what it was first given to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.domain import WorkerId
    from synergai.scheduling.events import Assignment


class Outlook:
    """A job's assignments of one instant, and what they promise for all of it.

    Queries that are not given out yet, because their tensors are still on their way or because
    other workers are to come in later, count as if the same workers went on with them.

    Args:
        queries: how many are to be done.
    """

    def __init__(self, queries: int) -> None:
        self._left = queries
        self._known = True
        self._ends: dict[WorkerId, tuple[float, float]] = {}

    def give(self, assignment: Assignment) -> None:
        """Take in an assignment of this instant."""
        self._left -= assignment.count
        self._known = self._known and assignment.estimate_s > 0
        self._ends[assignment.worker_id] = (assignment.estimate_s, assignment.query_s)

    @property
    def seconds(self) -> float | None:
        """From this instant until all is done; None if nobody knows."""
        ends = sorted(self._ends.values())
        if not self._known or not ends:
            return None
        until, _ = ends[-1]
        if self._left <= 0:
            return until
        if not all(query_s > 0 for _, query_s in ends):
            return None
        # All that go on end together: as many of the first as are free by then.
        rate = work = 0.0
        together = math.inf
        for end, query_s in ends:
            if end >= together:
                break
            rate += 1 / query_s
            work += end / query_s
            together = (self._left + work) / rate
        return max(until, together)
