"""Bounds on accuracy for any choice of variants.

One engine: a clairvoyant bound. Its workers are pooled, and a query may run in parts on several of
them. Requests are served in order of arrival: the time at which one is finished lies between the
next arrival, before which the time would be wasted, and its own deadline. Accuracy is concave in
seconds, so that the best times of finishing are those of a string pulled taut between these limits.

Several engines: a linear program, which gives requests the time of their workers between arrival
and deadline, both rounded outwards.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

import highspy
import numpy as np

from synergai.core.scheduling.variants.allowance import concave_hull
from synergai.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.variants.simulation import Scenario
    from synergai.domain import EngineName

_SLOT_S: Final = 0.05
_STEP_S: Final = 1e-4
_PART_S: Final = 10.0
"""Duration of the parts of a run that are bounded one by one."""


def accuracy_at_most(scenario: Scenario, engine: EngineName, arrivals: Sequence[float]) -> float:
    """Return a bound on the mean accuracy of one engine's requests, counting late ones as 0.

    Args:
        scenario: the engine's variants, its workers, and the time that each request has.
        engine: the only engine.
        arrivals: times of arrival, ascending; not empty.
    """
    workers = sum(engine in engines for engines in scenario.layout)
    deadlines = [at + scenario.deadline_s for at in arrivals]
    lower = [min(after, due) for after, due in zip(arrivals[1:], deadlines, strict=False)]
    lower.append(deadlines[-1])
    finished = taut_string(arrivals[0], lower, deadlines)
    seconds = np.diff([arrivals[0], *finished]) * workers
    hull_s, hull_accuracies = _hull(scenario, engine)
    # No request runs on two workers at once.
    seconds = np.minimum(seconds, scenario.deadline_s)
    return float(np.interp(seconds, hull_s, hull_accuracies).mean())


def _hull(scenario: Scenario, engine: EngineName) -> tuple[list[float], list[float]]:
    """Return seconds and accuracy of the best mixtures, with requests that are not answered."""
    points = [(0.0, 0.0), *scenario.fronts[engine].values()]
    hull = [points[number] for number in concave_hull(points)]
    return [seconds for seconds, _ in hull], [accuracy for _, accuracy in hull]


def taut_string(first: float, lower: Sequence[float], upper: Sequence[float]) -> list[float]:
    """Return the shortest path through a corridor.

    Its steps are as equal as the corridor allows: no other path through it has a larger sum of a
    concave function of the steps.

    Args:
        first: where it starts.
        lower: least value at each place, ascending.
        upper: most value at each place, not below the least; it ends at the last one.

    Returns:
        The path's value at each place.
    """
    lows = [first, *lower[:-1], upper[-1]]
    highs = [first, *upper]
    # The funnel: two chains of corners from the apex, each turning towards the other.
    path: list[tuple[int, float]] = [(0, first)]
    below: deque[tuple[int, float]] = deque([(0, first)])
    above: deque[tuple[int, float]] = deque([(0, first)])
    for place in range(1, len(lows)):
        _extend(above, below, (place, highs[place]), 1.0, path)
        _extend(below, above, (place, lows[place]), -1.0, path)
    path += list(below)[1:]
    places = [place for place, _ in path]
    values = [value for _, value in path]
    return [float(each) for each in np.interp(range(1, len(lows)), places, values)]


def _extend(
    chain: deque[tuple[int, float]],
    other: deque[tuple[int, float]],
    corner: tuple[int, float],
    side: float,
    path: list[tuple[int, float]],
) -> None:
    """Add a corner to a chain of the funnel; corners beyond which it narrows join the path.

    Args:
        chain: the chain of the corner's side.
        other: the other chain; both begin with the apex.
        corner: place and value.
        side: 1 for the upper chain, -1 for the lower one.
        path: corners of the path so far.
    """
    while len(chain) > 1 and side * _slope(chain[-2], chain[-1]) >= side * _slope(
        chain[-2], corner
    ):
        chain.pop()
    if len(chain) == 1:
        # The corner is seen from the apex, or the other chain is in the way.
        while len(other) > 1 and side * _slope(other[0], other[1]) >= side * _slope(
            other[0], corner
        ):
            other.popleft()
            path.append(other[0])
        chain.clear()
        chain.append(other[0])
    if chain[-1] != corner:  # which it is where the corridor has no width
        chain.append(corner)


def _slope(first: tuple[int, float], second: tuple[int, float]) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])


def relative_accuracy_at_most(
    scenario: Scenario, arrivals: Sequence[tuple[float, EngineName]]
) -> float:
    """Return a bound on the mean relative accuracy of several engines' requests.

    Accuracy is relative to that of an engine's best variant.

    Args:
        scenario: engines, workers, and the time that each request has.
        arrivals: time and engine of each request, ascending; not empty.

    Raises:
        InternalError: a program has no solution.
    """
    parts: dict[int, list[tuple[float, EngineName]]] = {}
    for each in arrivals:
        parts.setdefault(int(each[0] / _PART_S), []).append(each)
    total = sum(_Program(scenario).best_sum(part) for part in parts.values())
    return total / len(arrivals)


def schedule_at_most(scenario: Scenario, arrivals: Sequence[tuple[float, EngineName]]) -> float:
    """Return the best mean relative accuracy of any schedule of one worker, knowing all arrivals.

    Requests run whole and one after another, each in one variant. They all have the same time, so
    that there is a best schedule that serves them in order of arrival. Times are rounded to the
    schedule's favour. Late requests count 0.

    Args:
        scenario: engines with variants, and one worker.
        arrivals: time and engine of each request, ascending; not empty.
    """
    width = math.ceil(scenario.deadline_s / _STEP_S) + 1
    variants = {}
    for engine, front in scenario.fronts.items():
        best = max(accuracy for _, accuracy in front.values())
        variants[engine] = [
            (math.floor(seconds / _STEP_S + 1e-6), accuracy / best)
            for seconds, accuracy in front.values()
        ]
    # Best sum of accuracies if the worker is free that many steps after the last arrival.
    sums = np.zeros(width + 1)
    last = math.floor(arrivals[0][0] / _STEP_S)
    for at, engine in arrivals:
        arrival = math.floor(at / _STEP_S)
        if (passed := min(arrival - last, width)) > 0:
            sums[:-passed] = sums[passed:]
            sums[-passed:] = sums[-1]
        last = arrival
        before = sums.copy()
        for steps, accuracy in variants[engine]:
            if steps <= width:
                np.maximum(sums[steps:], before[: width + 1 - steps] + accuracy, out=sums[steps:])
        np.maximum.accumulate(sums, out=sums)
    return float(sums[-1]) / len(arrivals)


class _Program:
    """Linear program for the requests of a part of a run, as if nothing ran before and after it.

    Time is cut into slots. Requests of one engine that arrive in the same slot are taken together.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]  # ships partial types
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self._columns = 0
        self._load: dict[tuple[int, int], dict[int, float]] = {}

    def best_sum(self, arrivals: Sequence[tuple[float, EngineName]]) -> float:
        """Return the largest sum of the requests' relative accuracies."""
        counts = Counter((engine, int(at / _SLOT_S)) for at, engine in arrivals)
        for (engine, slot), count in sorted(counts.items()):
            self._add(engine, slot, count)
        for terms in self._load.values():
            self._at_most(_SLOT_S, terms)
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise InternalError(f"HiGHS found no bound: {self._highs.getModelStatus()}")
        return float(self._highs.getInfo().objective_function_value)

    def _add(self, engine: EngineName, slot: int, count: int) -> None:
        """Add requests of an engine that arrive in a slot."""
        hull_s, accuracies = _hull(self._scenario, engine)
        best = max(accuracies)
        gained = self._column(1.0, float(count))
        slots = math.ceil(self._scenario.deadline_s / _SLOT_S)
        seconds = [
            self._column(0.0, _SLOT_S, load=(worker, slot + later))
            for worker, served in enumerate(self._scenario.layout)
            if engine in served
            for later in range(slots + 1)
        ]
        for at in range(1, len(hull_s)):
            slope = (accuracies[at] - accuracies[at - 1]) / (hull_s[at] - hull_s[at - 1]) / best
            base = count * (accuracies[at] / best - slope * hull_s[at])
            self._at_most(base, {gained: 1.0, **dict.fromkeys(seconds, -slope)})

    def _column(self, value: float, upper: float, load: tuple[int, int] | None = None) -> int:
        """Add a variable; return its number."""
        self._highs.addCol(value, 0.0, upper, 0, [], [])
        if load is not None:
            self._load.setdefault(load, {})[self._columns] = 1.0
        self._columns += 1
        return self._columns - 1

    def _at_most(self, upper: float, terms: dict[int, float]) -> None:
        self._highs.addRow(
            -highspy.kHighsInf,
            upper,
            len(terms),
            np.array(list(terms)),
            np.array([*terms.values()]),
        )
