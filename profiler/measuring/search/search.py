"""A search: a strategy within a budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from profiler.measuring.search.space import Trial
from profiler.measuring.search.state import SearchState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from profiler.measuring.search.belief import Prediction
    from profiler.measuring.search.space import SearchSpace, TrialResult
    from profiler.measuring.search.state import SearchPlan

DEFAULT_BUDGET: Final = 0.24
"""Share of the expected exhaustive time: a quarter, with a margin for that expectation. A search
without a given budget also takes the time of one short measurement per row."""


class Strategy(Protocol):
    """Proposes one measurement after another."""

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next measurement; None if none is worth its time.

        The result, or the failure, is in `state` at the next call. The search ends at the first
        one that does not fit the budget.
        """


class Search:
    """Asks a strategy for measurements until it needs none, or the budget is spent.

    Args:
        budget: share of the expected duration of an exhaustive profile, 0 to 1; infinite for no
            limit. The expectation improves with each measurement, and the limit with it. None
            for `DEFAULT_BUDGET`, and in any case the first measurement of each row.
        known: results of earlier profiles by point, which count like its own.
        points: indices of the points to search; None for all. Results of others only tell
            something about these.
    """

    def __init__(
        self,
        space: SearchSpace,
        strategy: Strategy,
        plan: SearchPlan,
        budget: float | None = None,
        known: Mapping[int, TrialResult] | None = None,
        points: Collection[int] | None = None,
    ) -> None:
        self.state = SearchState(space, plan, points)
        self._strategy = strategy
        self._budget = DEFAULT_BUDGET if budget is None else budget
        self.state.first_fit = budget is None
        for point, result in (known or {}).items():
            self.state.know(point, result)
        self._unknown = self.state.open()

    def next(self) -> Trial | None:
        """Return the next measurement; None at the end of the search."""
        state = self.state
        if math.isfinite(self._budget):
            state.budget_s = self.budget_s()
        trial = self._strategy.propose(state)
        return trial if trial is not None and state.fits(trial) else None

    def budget_s(self) -> float:
        """Return the seconds that the search may take; enough for a first measurement."""
        state, unknown = self.state, self._unknown
        budget_s = self._budget * state.costs.exhaustive_s(unknown) if unknown else 0.0
        if not budget_s:
            return budget_s
        # A share of few configurations would otherwise be too short for any of them.
        if state.first_fit:
            return max(budget_s, state.spent_s + state.firsts_s())
        if state.new:
            return budget_s
        return max(budget_s, max(state.seconds(Trial(point)) for point in unknown))

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Report the result of a measurement."""
        self.state.tell(trial, result)

    def fail(self, trial: Trial, seconds: float) -> None:
        """Report that a measurement failed, after so many seconds."""
        self.state.fail(trial, seconds)

    def predictions(self) -> dict[int, Prediction]:
        """Return the expectation of the unmeasured points, in rows with a measurement."""
        state = self.state
        found = {}
        for point in state.open():
            row = state.space.points[point].row
            if state.measured(row):
                prediction = state.belief.predict(point)
                metered = state.measures_power(row[1])
                found[point] = prediction if metered else prediction._replace(watts=0.0)
        return found
