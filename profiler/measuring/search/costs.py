"""Expected durations of measurements."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.measuring.search.belief import Belief
    from profiler.measuring.search.space import Row, SearchSpace

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
        """Return the seconds of a measurement of an engine that is loaded."""
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
        """Learn from a measurement."""
        self._setups.setdefault(self._space.points[point].row, []).append(setup_s)
        self._expected_setups.clear()

    def seconds(self, point: int, *, full: bool, switches: bool = False) -> float:
        """Return the expected duration of a measurement in seconds."""
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
        """Return the expected T_pre of a row in seconds."""
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
