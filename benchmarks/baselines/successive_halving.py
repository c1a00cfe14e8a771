"""Successive halving: longer runs for the better third (Jamieson and Talwalkar 2016)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.measuring.search.space import Trial

if TYPE_CHECKING:
    from profiler.measuring.search.space import Row
    from profiler.measuring.search.state import SearchState

_KEPT: Final = 3
_ROUNDS: Final = 2
"""Rounds after the first one; the last has full runs."""
_FIRST_SHARE: Final = 0.7
"""Share of the budget of the first runs."""


class SuccessiveHalving:
    """Measures random points briefly, the best third of each row again, and the best of it in full.

    Args:
        seed: seed of the choice.
    """

    def __init__(self, seed: str = "0") -> None:
        self._random = np.random.default_rng(int(seed))
        self._runs: list[Trial] | None = None
        self._round = 0
        self._kept: dict[Row, list[int]] = {}

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next run of the round, or the first of the next round."""
        if self._runs is None:
            self._runs = self._first(state)
        while self._runs or self._round < _ROUNDS:
            if not self._runs:
                self._round += 1
                self._runs = self._next(state)
            elif state.is_hopeless((trial := self._runs.pop(0)).point):
                continue
            else:
                return trial
        return None

    def _first(self, state: SearchState) -> list[Trial]:
        left_s = _FIRST_SHARE * (state.budget_s - state.spent_s)
        chosen = []
        # Each row gets its share: in the order of a permutation within each of them.
        columns = [
            list(self._random.permutation([point for point in points if state.is_open(point)]))
            for points in state.rows.values()
        ]
        while any(columns):
            for column in filter(None, columns):
                point = int(column.pop())
                left_s -= state.seconds(Trial(point))
                if left_s >= 0:
                    chosen.append(point)
            if left_s < 0:
                break
        self._kept = {row: [] for row in state.rows}
        for point in chosen:
            self._kept[state.space.points[point].row].append(point)
        return [Trial(point) for point in state.by_mode(chosen)]

    def _next(self, state: SearchState) -> list[Trial]:
        again = []
        for row, points in self._kept.items():
            measured = sorted((p for p in points if p in state.results), key=state.qps)
            self._kept[row] = measured[-max(1, len(measured) // _KEPT) :] if measured else []
            again += self._kept[row]
        return [Trial(point, full=self._round == _ROUNDS) for point in state.by_mode(again)]
