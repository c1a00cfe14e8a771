"""Round robin: the oldest job to the next available worker (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.predefined import ArrivalOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.policy import Candidate, View
    from synergai.scheduling.state import JobRecord


class RoundRobin(ArrivalOrder):
    """Cycles over the available workers, regardless of their speed.

    Requests do not advance the cycle, so that they do not change where jobs run.
    """

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = -1

    def choose(self, _view: View, job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the first candidate after the worker that got the last job."""
        chosen = next((c for c in candidates if c.worker.index > self._last), candidates[0])
        if not job.is_request:
            self._last = chosen.worker.index
        return chosen
