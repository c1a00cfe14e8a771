"""Best effort: the oldest job to the strongest available worker (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.policies.predefined import ArrivalOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.policy import Candidate, View
    from synergai.core.scheduling.state.jobs import JobRecord


class BestEffort(ArrivalOrder):
    """Assigns each job to the strongest available worker.

    Args:
        order: worker classes, strongest first, separated by spaces. By default the strongest
            worker is the one with the highest QPS for the job's engine.
    """

    def __init__(self, order: str = "", **configurations: str) -> None:
        super().__init__(**configurations)
        self._order = {name: place for place, name in enumerate(order.split())}

    def choose(self, _view: View, _job: JobRecord, candidates: Sequence[Candidate]) -> Candidate:
        """Return the strongest candidate."""
        last = len(self._order)
        return min(
            candidates,
            key=lambda c: (
                self._order.get(c.worker.worker.worker_class, last),
                -c.estimate.entry.planned_qps,
                c.worker.index,
            ),
        )
