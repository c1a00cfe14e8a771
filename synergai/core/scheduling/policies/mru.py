"""Most recently used: the oldest job to the worker that was active last (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.policies.predefined import ArrivalOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.policy import Candidate, View
    from synergai.core.scheduling.state.jobs import JobRecord


class MostRecentlyUsed(ArrivalOrder):
    """Keeps to warm workers, at the risk of leaving others unused."""

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that was active most recently."""
        return min(candidates, key=lambda c: (-c.worker.idle_since, c.worker.index))
