"""A search: its state, what its measurements take, and a strategy within a budget."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final, Protocol

from profiler.measuring.search.belief import Belief
from profiler.measuring.search.space import Trial

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from profiler.measuring.search.belief import Prediction
    from profiler.measuring.search.space import Device, Row, SearchSpace, TrialResult


_PROBES: Final = 5
_PRIOR_SETUP_S: Final = 3.0
"""T_pre of an unknown engine, and of an unknown device."""
_PRIOR_QPS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Extent of measurements: the least duration and number of LoadGen's queries.

    Attributes:
        full_s: seconds of a full run.
        short_s: seconds of a short run.
        short_queries: its queries; 64 are LoadGen's least for an early-stopped 90th
            percentile.
        ranges_share: duration of the ranges after it, as a share of the run.
        least_ranges_s: their least duration in seconds.
        switch_s: duration of a switch of the power mode.
    """

    full_s: float = 10.0
    full_queries: int = 100
    short_s: float = 2.0
    short_queries: int = 64
    ranges_share: float = 0.5
    least_ranges_s: float = 1.0
    switch_s: float = 5.0

    def run_s(self, qps: float, *, full: bool) -> float:
        least_s, queries = (
            (self.full_s, self.full_queries) if full else (self.short_s, self.short_queries)
        )
        ranges_s = max(self.least_ranges_s, least_s * self.ranges_share)
        return _PROBES / qps + max(least_s, queries / qps) + ranges_s


class Costs:
    """Expected duration of a measurement of each point.

    T_pre is that of the same engine on the same device if it is known, otherwise the product of a
    factor of the engine and one of the device, as far as these are.
    """

    def __init__(self, space: SearchSpace, plan: SearchPlan, belief: Belief) -> None:
        self._space = space
        self._plan = plan
        self._belief = belief
        self._setups: dict[Row, list[float]] = {}
        self._expected_setups: dict[Row, float] = {}
        """Estimates that follow from them, until the next one."""

    def learn(self, point: int, setup_s: float) -> None:
        self._setups.setdefault(self._space.points[point].row, []).append(setup_s)
        self._expected_setups.clear()

    def seconds(self, point: int, *, full: bool, switches: bool = False) -> float:
        # Before the first measurement, the level of all figures is unknown.
        qps = math.exp(self._belief.qps.mean[point]) if self._setups else _PRIOR_QPS
        run_s = self._plan.run_s(qps, full=full)
        return self.setup_s(self._space.points[point].row) + run_s + switches * self._plan.switch_s

    def exhaustive_s(self, points: Sequence[int]) -> float:
        """Return the expected duration of a full measurement of points, mode by mode."""
        runs_s = sum(self.seconds(point, full=True) for point in points)
        modes = {
            (self._space.points[point].device[0], mode)
            for point in points
            if (mode := self._space.points[point].configuration.power_mode)
        }
        return runs_s + len(modes) * self._plan.switch_s

    def setup_s(self, row: Row) -> float:
        if row not in self._expected_setups:
            self._expected_setups[row] = self._expect_setup_s(row)
        return self._expected_setups[row]

    def _expect_setup_s(self, row: Row) -> float:
        if known := self._setups.get(row):
            return fmean(known)
        by_engine: dict[str, list[float]] = defaultdict(list)
        by_device: dict[tuple[str, str], list[float]] = defaultdict(list)
        for (engine, device), seconds in self._setups.items():
            by_engine[engine].append(math.log(max(1e-3, fmean(seconds))))
            by_device[device].append(math.log(max(1e-3, fmean(seconds))))
        engine, device = row
        everything = [each for logs in by_engine.values() for each in logs]
        mean = fmean(everything) if everything else math.log(_PRIOR_SETUP_S)
        of_engine = fmean(by_engine[engine]) - mean if by_engine[engine] else 0.0
        of_device = fmean(by_device[device]) - mean if by_device[device] else 0.0
        return math.exp(mean + of_engine + of_device)


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

    def tell(self, trial: Trial, result: TrialResult) -> None:
        self._switch(trial)
        self.spent_s += result.seconds
        self.new.append(trial.point)
        self.add(trial.point, result)

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

    def add(self, point: int, result: TrialResult) -> None:
        """Add a result, such as one of an earlier profile, which costs nothing."""
        self.results.setdefault(point, []).append(result)
        self.belief.observe(point, result)
        self.costs.learn(point, result.setup_s)
        if result.watts <= 0:
            self._without_power.add(self.space.points[point].device)


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
            self.state.add(point, result)
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
