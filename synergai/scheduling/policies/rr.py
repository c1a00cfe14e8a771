"""Round robin: the oldest job to the next available worker, in a circle (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.predefined import InTurn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.policy import Candidate, View
    from synergai.scheduling.state import JobRecord


class RoundRobin(InTurn):
    """Whoever is available comes next in the circle, whatever it is capable of."""

    def __init__(self, **configurations: str) -> None:
        super().__init__(**configurations)
        self._last = -1

    def choose(self, _view: View, _job: JobRecord, able: Sequence[Candidate]) -> Candidate:
        """The first available worker after the one that had the last job."""
        chosen = next((c for c in able if c.order > self._last), able[0])
        self._last = chosen.order
        return chosen
