"""Strict round robin: each job to the very next worker, busy or not (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.predefined import InTurn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.policy import Candidate, View
    from synergai.scheduling.state import JobRecord


class StrictRoundRobin(InTurn):
    """The circle includes the busy workers; the job waits for the one whose turn it is."""

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = -1

    def choose(self, view: View, job: JobRecord, able: Sequence[Candidate]) -> Candidate | None:
        """The next worker in the circle that serves the job's engine, if it is available."""
        circle = sorted(w.index for w in view.serving(job.job.engine) if not w.draining)
        following = next((index for index in circle if index > self._last), circle[0])
        chosen = next((c for c in able if c.order == following), None)
        if chosen is not None:
            self._last = following
        return chosen
