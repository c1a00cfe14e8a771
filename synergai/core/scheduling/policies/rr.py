"""Round robin: the oldest job to the next available worker (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.policies.predefined import ArrivalOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.policy import Candidate, View
    from synergai.core.scheduling.state.jobs import JobRecord


class RoundRobin(ArrivalOrder):
    """Cycles over the available workers, regardless of their speed.

    Requests have a cycle of their own, so that they do not change where jobs run.
    """

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = {False: -1, True: -1}  # by whether it is a request

    def choose(self, _view: View, job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the first candidate after the worker that got the last job."""
        last = self._last[job.is_request]
        chosen = next((c for c in candidates if c.worker.index > last), candidates[0])
        self._last[job.is_request] = chosen.worker.index
        return chosen
