"""Strict round robin: each job to the very next worker, busy or not (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.policies.predefined import ArrivalOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.policy import Candidate, View
    from synergai.core.scheduling.state.jobs import JobRecord


class StrictRoundRobin(ArrivalOrder):
    """Cycles over all workers; a job waits for the next one in turn.

    Requests have a cycle of their own, so that they do not change where jobs run.
    """

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = {False: -1, True: -1}  # by whether it is a request

    def choose(
        self, view: View, job: JobRecord, candidates: Sequence[Candidate]
    ) -> Candidate | None:
        """Return the next worker that serves the job's engine, or None while it is busy."""
        last = self._last[job.is_request]
        circle = sorted(
            worker.index
            for worker in view.serving(job.job.engine)
            if not worker.withdrawn and view.can_run(job, worker)
        )
        following = next((index for index in circle if index > last), circle[0])
        chosen = next((c for c in candidates if c.worker.index == following), None)
        if chosen is not None:
            self._last[job.is_request] = following
        return chosen
