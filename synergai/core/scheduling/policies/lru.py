"""Least recently used: the oldest job to the worker idle longest (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.policies.predefined import ArrivalOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.policy import Candidate, View
    from synergai.core.scheduling.state.jobs import JobRecord


class LeastRecentlyUsed(ArrivalOrder):
    """Spreads work evenly over the workers."""

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that has been idle longest."""
        return min(candidates, key=lambda c: (c.worker.idle_since, c.worker.index))
