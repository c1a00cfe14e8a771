"""Points at random, the baseline of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.measuring.search.space import Trial

if TYPE_CHECKING:
    from profiler.measuring.search.state import SearchState


class RandomPoints:
    """Measures as many points as the budget allows, chosen at random, with short runs.

    Args:
        seed: seed of the choice.
    """

    def __init__(self, seed: str = "0") -> None:
        self._random = np.random.default_rng(int(seed))
        self._chosen: list[int] | None = None

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next of the chosen points."""
        if self._chosen is None:
            self._chosen = self._choose(state)
        left = [point for point in self._chosen if state.is_possible(point)]
        if not left:
            # Durations were overestimated: draw again for the rest of the budget.
            left = self._chosen = self._choose(state)
        ordered = state.by_mode(left)
        return Trial(ordered[0]) if ordered else None

    def _choose(self, state: SearchState) -> list[int]:
        left_s = state.budget_s - state.spent_s
        chosen = []
        for point in self._random.permutation(state.open()):
            left_s -= state.seconds(Trial(int(point)))
            if left_s < 0:
                break
            chosen.append(int(point))
        return chosen
