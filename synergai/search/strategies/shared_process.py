"""Expected improvement per second under a Gaussian process that all rows share."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from synergai.errors import InvalidInput
from synergai.search.improvement import expected_improvement, improvement
from synergai.search.trials import SHORT_ERROR, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.search.state import State

_OBJECTIVES: Final = {"qps": (0.0,), "front": (0.0, 1.0, 0.5)}
"""Weights of the logarithm of the power in what is maximised, one after the other: the QPS, the
QPS per watt, and the middle between them."""
_TOLERANCES: Final = {0.0: 0.01, 1.0: 0.02, 0.5: 0.02}
"""Improvement that is not worth a measurement, by weight."""
_WORTH_REPEATING: Final = 0.001
_MOST_REPEATS: Final = 3


class _Candidate(NamedTuple):
    """A point whose measurement may improve its row.

    Attributes:
        point: its index.
        improvement: expected gain of the logarithm.
        seconds: expected duration, without the switch of the power mode.
    """

    point: int
    improvement: float
    seconds: float


class SharedProcessSearch:
    """Measures each row at its predicted best first, then where most is gained per second.

    Args:
        objective: ``qps`` to search for the highest QPS only, or ``front`` for those of QPS
            against QPS per watt as well, where power can be measured.

    Raises:
        InvalidInput: on construction, if the objective is unknown.
    """

    def __init__(self, objective: str = "front") -> None:
        if objective not in _OBJECTIVES:
            raise InvalidInput(f"{objective!r} is not an objective; use qps or front")
        self._weights = _OBJECTIVES[objective]

    def propose(self, state: State) -> Trial | None:
        """Return the point with the highest expected improvement per second."""
        first = self._first_of_rows(state)
        if first is not None:
            return Trial(first)
        for weight in self._weights:
            candidates = self._candidates(state, weight)
            if not candidates and not weight:
                candidates = self._contenders(state)
            if candidates:
                return Trial(_choose(state, candidates))
        return None

    @staticmethod
    def _first_of_rows(state: State) -> int | None:
        """Return the predicted best point of a row without measurements; None if all have some."""
        mean = state.belief.mean(0.0)
        firsts = []
        for row, points in state.rows.items():
            if not state.measured(row):
                left = [point for point in points if state.is_possible(point)]
                firsts += [max(left, key=lambda point: mean[point])] if left else []
        return state.by_mode(firsts)[0] if firsts else None

    @staticmethod
    def _candidates(state: State, weight: float) -> list[_Candidate]:
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
                if gain >= _TOLERANCES[weight]
            ]
            if worthwhile:
                candidates.append(max(worthwhile, key=_rate))
        return candidates

    @staticmethod
    def _contenders(state: State) -> list[_Candidate]:
        """Return points to measure again, of rows in which noise may have hidden the best one."""
        mean, covariance = state.belief.qps.mean, state.belief.qps.covariance
        contenders = []
        for row in state.rows:
            measured = sorted(state.measured(row), key=lambda point: -mean[point])
            for best, point, again in _pairs(measured):
                if len(state.results[again]) >= _MOST_REPEATS or not state.fits(Trial(again)):
                    continue
                # How far its next result will move the difference.
                variance, shared = covariance[again, again], covariance[best, point]
                moves = (variance - shared) / np.sqrt(variance + SHORT_ERROR**2)
                gain = improvement(np.array([mean[point] - mean[best]]), np.array([moves]))
                if gain[0] >= _WORTH_REPEATING:
                    seconds = state.costs.seconds(again, full=False)
                    contenders.append(_Candidate(again, float(gain[0]), seconds))
        return contenders


def _pairs(measured: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the best point, each other one, and which of the two to measure again: both in turn."""
    for point in measured[1:]:
        for again in (measured[0], point):
            yield measured[0], point, again


def _choose(state: State, candidates: Sequence[_Candidate]) -> int:
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
