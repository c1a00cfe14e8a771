"""Genetic planner of routes, after Reisinger et al.

The paper names a genetic strategy, and describes nothing of it. This one breeds orders of workers:
for each order, the cuts follow leg by leg from the best ones of the legs before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from profiler.planning.tables import Tables
from synergai.core.routes.planner import found
from synergai.core.routes.problem import Leg, Route

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import RouteProblem

_POPULATION: Final = 40
_PARENTS: Final = 13
_ELITE: Final = 4
_GENERATIONS: Final = 60
_IMMIGRANTS: Final = 0.1
"""Share of children that are drawn instead of mutated."""


def genetic(problem: RouteProblem, seed: int = 0) -> Search:
    """Breed orders of workers from random ones; plan the fastest route of the last generation."""
    if not problem.workers:
        return found(None)
    generator, tables = np.random.default_rng(seed), Tables(problem)
    workers = [number for number, group in enumerate(tables.groups) for _ in group]
    orders = generator.permuted(np.tile(workers, (_POPULATION, 1)), axis=1)
    orders[0] = workers  # the best one that can be alone comes first
    for _ in range(_GENERATIONS):
        ranked = orders[_cut(tables, orders, problem.queries).seconds.argsort(kind="stable")]
        children = ranked[generator.integers(_PARENTS, size=_POPULATION - _ELITE)]
        drawn = generator.random(len(children)) < _IMMIGRANTS
        children[drawn] = generator.permuted(children[drawn], axis=1)
        # The others have two workers exchanged.
        child = np.flatnonzero(~drawn)
        one, other = generator.integers(len(workers), size=(2, len(child)))
        children[child, one], children[child, other] = children[child, other], children[child, one]
        orders = np.concatenate([ranked[:_ELITE], children])
    return found(_cut(tables, ranked[:1], problem.queries).route(tables, ranked[0]))


class _Cut(NamedTuple):
    """Cuts for orders of workers.

    Attributes:
        seconds: time of the best route by order; infinite if there is none.
        begins: where the leg begins that ends at a position, by leg, order and position.
    """

    seconds: NDArray[np.float64]
    legs: NDArray[np.int64]
    begins: list[NDArray[np.int64]]

    def route(self, tables: Tables, order: NDArray[np.int64]) -> Route | None:
        """Return the route of the first order, or None."""
        if self.seconds[0] == np.inf:
            return None
        last, members, backwards = len(tables.stages) - 1, list(map(list, tables.groups)), []
        for leg in range(self.legs[0] - 1, -1, -1):
            first = int(self.begins[leg][0, last])
            backwards.append(Leg(members[order[leg]].pop(), first, last))
            last = first
        return Route(tuple(reversed(backwards)))


def _cut(tables: Tables, orders: NDArray[np.int64], queries: int) -> _Cut:
    """Return the best cuts for orders of workers, which begin with those of the route.

    A leg continues the part of a route whose queries would end first. For ranges, another part may
    be better in the end.
    """
    following, positions = queries - 1, len(tables.stages)
    # By group, or by receiver and sender, and then by position.
    stages, hops, hop_intervals = tables.stages.T, tables.hops.T, tables.intervals.T
    rest = np.where(stages < np.inf, stages, 0.0)
    latencies = np.full((len(orders), positions), np.inf)
    latencies[:, 0] = 0.0
    intervals = np.zeros_like(latencies)
    sender = np.full(len(orders), len(tables.groups))
    totals, begins = [], []
    for receiver in orders.T[: positions - 1]:
        latencies = latencies + hops[receiver, sender]
        intervals = np.maximum(intervals, hop_intervals[receiver, sender])
        to_end = latencies[..., np.newaxis] + stages[receiver]
        between = np.maximum(intervals[..., np.newaxis], rest[receiver])
        begin = (to_end + following * between).argmin(axis=1)
        begins.append(begin)
        latencies = np.take_along_axis(to_end, begin[:, np.newaxis], axis=1)[:, 0]
        intervals = np.take_along_axis(between, begin[:, np.newaxis], axis=1)[:, 0]
        sender = receiver
        interval = np.maximum(intervals[:, -1], hop_intervals[-1, receiver, -1])
        totals.append(latencies[:, -1] + hops[-1, receiver, -1] + following * interval)
    seconds = np.array(totals)
    return _Cut(seconds.min(axis=0), seconds.argmin(axis=0) + 1, begins)
