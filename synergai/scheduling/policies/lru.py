"""Least recently used: the oldest job to the worker that is idle longest (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.predefined import InTurn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.policy import Candidate, View
    from synergai.scheduling.state import JobRecord


class LeastRecentlyUsed(InTurn):
    """Spreads the work evenly, so that no worker starves."""

    def choose(self, _view: View, _job: JobRecord, able: Sequence[Candidate]) -> Candidate:
        """The available worker that has been idle longest."""
        return min(able, key=lambda candidate: (candidate.worker.idle_since, candidate.order))
