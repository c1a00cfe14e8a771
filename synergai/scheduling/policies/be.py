"""Best effort: the oldest job to the strongest available worker (thesis, chapter 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.predefined import InTurn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.policy import Candidate, View
    from synergai.scheduling.state import JobRecord


class BestEffort(InTurn):
    """Greedy: from the strongest worker to the weakest, until one is available.

    Args:
        order: worker classes, the strongest first, separated by spaces. Without it the
            strongest is whoever runs the job's engine fastest.
        configurations: predefined configurations by worker class.
    """

    def __init__(self, order: str = "", **configurations: str) -> None:
        super().__init__(**configurations)
        self._order = {name: place for place, name in enumerate(order.split())}

    def choose(self, _view: View, _job: JobRecord, able: Sequence[Candidate]) -> Candidate:
        """The strongest one that is available."""
        last = len(self._order)
        return min(
            able,
            key=lambda c: (
                self._order.get(c.worker.worker.worker_class, last),
                -c.estimate.entry.qps,
                c.order,
            ),
        )
