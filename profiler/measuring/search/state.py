"""State of a search: results, failures, the time spent, and the belief about the rest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from profiler.measuring.search.belief import Belief
from profiler.measuring.search.costs import Costs
from profiler.measuring.search.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from profiler.measuring.search.costs import SearchPlan
    from profiler.measuring.search.space import Device, Row, SearchSpace
    from profiler.measuring.search.trials import TrialResult

_HOPELESS: Final = 2
"""Failures after which a row without any success is given up."""


class SearchState:
    """Knowledge of a search.

    Args:
        points: indices of the points to search; None for all. Results of others only tell
            something about these.

    Attributes:
        rows: indices of the points to search, by row.
        first_fit: whether the first measurement of a row is made even beyond the budget.
        results: results by point, in order, including earlier searches.
        new: points that this search measured, in order.
        failed: points that cannot be measured.
        unmeasurable: rows that cannot be measured.
        spent_s: seconds that the search took so far, without the failures that a row may have
            before it is given up: an engine that does not start leaves the others their time.
        modes: the power mode in force, by worker class.
        belief: what the results say about all points.
        costs: expected durations.
    """

    def __init__(
        self, space: SearchSpace, plan: SearchPlan, points: Collection[int] | None = None
    ) -> None:
        self.space = space
        self.rows: dict[Row, list[int]] = {}
        for index in range(len(space)) if points is None else sorted(points):
            self.rows.setdefault(space.points[index].row, []).append(index)
        self._points = frozenset(range(len(space)) if points is None else points)
        self.budget_s = math.inf
        self.first_fit = False
        self.results: dict[int, list[TrialResult]] = {}
        self.new: list[int] = []
        self.failed: set[int] = set()
        self.unmeasurable: set[Row] = set()
        self.spent_s = 0.0
        self.modes: dict[str, str] = {}
        self.belief = Belief(space)
        self.costs = Costs(space, plan, self.belief)
        self._without_power: set[Device] = set()

    def know(self, point: int, result: TrialResult) -> None:
        """Add a result of an earlier profile, which costs nothing."""
        self._add(point, result)

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Add the result of a trial."""
        self._switch(trial)
        self.spent_s += result.seconds
        self.new.append(trial.point)
        self._add(trial.point, result)

    def fail(self, trial: Trial, seconds: float) -> None:
        """Note that a trial failed; it is not tried again."""
        self._switch(trial)
        self.failed.add(trial.point)
        row = self.space.points[trial.point].row
        points = self.space.rows[row]
        failures = sum(point in self.failed for point in points)
        if failures > _HOPELESS:
            self.spent_s += seconds
        if failures >= _HOPELESS and not any(point in self.results for point in points):
            self.unmeasurable.add(row)

    def measures_power(self, device: Device) -> bool:
        """Return whether the device's power can be measured, as far as is known."""
        return device not in self._without_power

    def qps(self, point: int) -> float:
        """Return the mean measured QPS of a point that was measured; the error weighs."""
        results = self.results[point]
        weights = [each.error**-2 for each in results]
        return sum(w * each.qps for w, each in zip(weights, results, strict=True)) / sum(weights)

    def watts(self, point: int) -> float:
        """Return the mean power of a measured point; 0 if it was not measured."""
        measured = [each.watts for each in self.results[point] if each.watts > 0]
        return sum(measured) / len(measured) if measured else 0.0

    def is_open(self, point: int) -> bool:
        """Return whether a point was neither measured nor failed, nor its row given up."""
        unknown = point in self._points and point not in self.results
        return unknown and not self.is_hopeless(point)

    def is_hopeless(self, point: int) -> bool:
        """Return whether a point failed, or its row is given up."""
        return point in self.failed or self.space.points[point].row in self.unmeasurable

    def is_possible(self, point: int) -> bool:
        """Return whether an open point can be measured within the rest of the budget."""
        return self.is_open(point) and self.fits(Trial(point))

    def fits(self, trial: Trial) -> bool:
        """Return whether a trial should end within the budget."""
        if self.first_fit and not self.measured(self.space.points[trial.point].row):
            return True
        return self.spent_s + self.seconds(trial) <= self.budget_s

    def open(self) -> list[int]:
        """Return the points that are open."""
        return [point for points in self.rows.values() for point in points if self.is_open(point)]

    def measured(self, row: Row) -> list[int]:
        """Return the points to search of a row that were measured."""
        return [point for point in self.rows.get(row, ()) if point in self.results]

    def best(self, row: Row) -> int | None:
        """Return the measured point of a row with the highest QPS; None if there is none."""
        return max(self.measured(row), key=self.qps, default=None)

    def seconds(self, trial: Trial) -> float:
        """Return the expected duration of a trial, with the switch of the power mode."""
        point = self.space.points[trial.point]
        mode = point.configuration.power_mode
        switches = bool(mode) and self.modes.get(point.device[0]) != mode
        return self.costs.seconds(trial.point, full=trial.full, switches=switches)

    def firsts_s(self) -> float:
        """Return the expected duration of one short measurement of each row without any."""
        return sum(
            max(self.seconds(Trial(point)) for point in left)
            for row, points in self.rows.items()
            if not self.measured(row) and (left := [p for p in points if self.is_open(p)])
        )

    def by_mode(self, points: Sequence[int]) -> list[int]:
        """Return points in an order with few switches of power modes, the mode in force first."""

        def key(index: int) -> tuple[str, bool, str]:
            point = self.space.points[index]
            worker_class, mode = point.device[0], point.configuration.power_mode
            return worker_class, self.modes.get(worker_class) != mode, mode

        return sorted(points, key=key)

    def _switch(self, trial: Trial) -> None:
        """Note the power mode that a trial left in force."""
        point = self.space.points[trial.point]
        self.modes[point.device[0]] = point.configuration.power_mode

    def _add(self, point: int, result: TrialResult) -> None:
        self.results.setdefault(point, []).append(result)
        self.belief.observe(point, result)
        self.costs.learn(point, result.setup_s)
        if result.watts <= 0:
            self._without_power.add(self.space.points[point].device)
