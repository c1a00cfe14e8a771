"""Expected improvement per second under a Gaussian process that all rows share."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from profiler.measuring.search.space import SHORT_ERROR, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from profiler.measuring.search.space import Device
    from profiler.measuring.search.state import SearchState

Objective: TypeAlias = Literal["qps", "front"]
_OBJECTIVES: Final[Mapping[Objective, tuple[float, ...]]] = {
    "qps": (0.0,),
    "front": (0.0, 1.0, 0.5),
}
"""Weights of the logarithm of the power in what is maximised, one after the other: the QPS, the
QPS per watt, and the middle between them."""
_TOLERANCES: Final = {0.0: 0.01, 1.0: 0.02, 0.5: 0.02}
"""Improvement that is not worth a measurement, by weight."""
_LEAST_GAIN: Final = 0.001
"""Improvement of the QPS for which time is left once all of the above is found."""
_MOST_REPEATS: Final = 3
_TAIL_WEIGHT: Final = 0.06
_TAIL_DEVIATION: Final = 0.35
"""Curves can break in ways that no process expects: a share of the belief is this much wider."""
_erf = np.vectorize(math.erf, otypes=[np.float64])


class _Candidate(NamedTuple):
    """A point whose measurement may improve its row.

    Attributes:
        improvement: expected gain of the logarithm.
        seconds: expected duration, without the switch of the power mode.
    """

    point: int
    improvement: float
    seconds: float


class SharedProcessSearch:
    """Measures each row at its predicted best first, then where most is gained per second.

    It spends its budget: where nothing more is to be gained, what is left makes predictions better.
    Without a budget it ends there.

    Args:
        objective: ``qps`` to search for the highest QPS only, or ``front`` for the front of QPS
            against QPS per watt as well, where power can be measured.
    """

    def __init__(self, objective: Objective = "front") -> None:
        self._weights = _OBJECTIVES[objective]

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next measurement; the last ones where it says most about all others."""
        first = self._first_of_rows(state)
        if first is not None:
            return Trial(first)
        if scouts := _unseen_modes(state):
            return Trial(max(_informative(state, scouts), key=_rate).point)
        for weight in self._weights:
            candidates = self._candidates(state, weight, _TOLERANCES[weight])
            if not candidates and not weight:
                candidates = self._contenders(state)
            if candidates:
                return Trial(_choose(state, candidates))
        if candidates := self._candidates(state, 0.0, _LEAST_GAIN):
            return Trial(_choose(state, candidates))
        left = [point for point in state.open() if state.fits(Trial(point))]
        if left and math.isfinite(state.budget_s):
            return Trial(max(_informative(state, left), key=_rate).point)
        return None

    @staticmethod
    def _first_of_rows(state: SearchState) -> int | None:
        """Return the predicted best point of a row without measurements; None if all have some."""
        mean = state.belief.mean(0.0)
        firsts = []
        for row, points in state.rows.items():
            if not state.measured(row):
                left = [point for point in points if state.is_possible(point)]
                firsts += [max(left, key=lambda point: mean[point])] if left else []
        return state.by_mode(firsts)[0] if firsts else None

    @staticmethod
    def _candidates(state: SearchState, weight: float, least: float) -> list[_Candidate]:
        """Return the best point to measure of each row in which one is worth it."""
        mean = state.belief.mean(weight)
        candidates = []
        for row, points in state.rows.items():
            measured = state.measured(row)
            left = [point for point in points if state.is_possible(point)]
            if not measured or not left or (weight and not state.measures_power(row[1])):
                continue
            best = max(measured, key=lambda point: mean[point])
            improvements = expected_improvement(*state.belief.gains(left, best, weight))
            worthwhile = [
                _Candidate(point, float(gain), state.costs.seconds(point, full=False))
                for point, gain in zip(left, improvements, strict=True)
                if gain >= least
            ]
            if worthwhile:
                candidates.append(max(worthwhile, key=_rate))
        return candidates

    @staticmethod
    def _contenders(state: SearchState) -> list[_Candidate]:
        """Return points to measure again, of rows in which noise may have hidden the best one."""
        process = state.belief.qps
        mean, covariance = process.mean, process.covariance
        contenders = []
        for row in state.rows:
            chosen = state.best(row)
            others = [point for point in state.measured(row) if point != chosen]
            if chosen is None or not others:
                continue
            for again in ([chosen] * len(others), others):
                # How far the next result of one of the two will move their difference.
                variances, shared = covariance[again, again], covariance[chosen, others]
                moves = (variances - shared) / np.sqrt(variances + process.error(SHORT_ERROR) ** 2)
                gains = improvement(mean[others] - mean[chosen], moves)
                contenders += [
                    _Candidate(point, float(gain), state.costs.seconds(point, full=False))
                    for point, gain in zip(again, gains, strict=True)
                    if gain >= _LEAST_GAIN
                    and len(state.results[point]) < _MOST_REPEATS
                    and state.fits(Trial(point))
                ]
        return contenders


def _unseen_modes(state: SearchState) -> list[int]:
    """Return the points of power modes in which a device was not measured with any engine."""
    points = state.space.points

    def mode(point: int) -> tuple[Device, str]:
        return points[point].device, points[point].configuration.power_mode

    seen = {mode(point) for point in state.results}
    return [p for p in state.open() if mode(p) not in seen and state.fits(Trial(p))]


def _informative(state: SearchState, points: Sequence[int]) -> list[_Candidate]:
    """Return points with what their measurement takes from the variance of all together."""
    process = state.belief.qps
    searched = [point for each in state.rows.values() for point in each]
    shared = process.covariance[np.ix_(points, searched)]
    variances = np.diagonal(process.covariance)[points] + process.error(SHORT_ERROR) ** 2
    return [
        _Candidate(point, float(reduced), state.seconds(Trial(point)))
        for point, reduced in zip(points, np.sum(shared**2, axis=1) / variances, strict=True)
    ]


def _choose(state: SearchState, candidates: Sequence[_Candidate]) -> int:
    """Return the best candidate of the power mode whose candidates gain most per second."""

    def group(candidate: _Candidate) -> tuple[str, str]:
        point = state.space.points[candidate.point]
        return point.device[0], point.configuration.power_mode

    def group_rate(members: Sequence[_Candidate]) -> float:
        first = Trial(members[0].point)
        switch_s = state.seconds(first) - members[0].seconds
        return sum(each.improvement for each in members) / (
            switch_s + sum(each.seconds for each in members)
        )

    groups = [list(members) for _, members in groupby(sorted(candidates, key=group), group)]
    best = max(groups, key=group_rate)
    return max(best, key=_rate).point


def _rate(candidate: _Candidate) -> float:
    return candidate.improvement / candidate.seconds


def expected_improvement(
    gain: NDArray[np.float64], deviation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean of the positive part of a gain, with a heavy tail.

    Args:
        gain: mean of the gain; shape (N,).
        deviation: its standard deviation; shape (N,).

    Returns:
        Shape (N,).
    """
    wide = np.hypot(deviation, _TAIL_DEVIATION)
    return (1 - _TAIL_WEIGHT) * improvement(gain, deviation) + _TAIL_WEIGHT * improvement(
        gain, wide
    )


def improvement(gain: NDArray[np.float64], deviation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the positive part of a gain that is normally distributed.

    Args:
        gain: mean of the gain; shape (N,).
        deviation: its standard deviation; shape (N,).

    Returns:
        Shape (N,); Mockus, Tiesis and Zilinskas 1978.
    """
    sigma = np.maximum(deviation, 1e-9)
    z = gain / sigma
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + _erf(z / math.sqrt(2)))
    mean: NDArray[np.float64] = gain * below + sigma * density
    return mean
