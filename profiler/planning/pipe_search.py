"""Pipe-search: an evolutionary search through all routes, in the order of hints.

Soomro, Abduljabbar, Castrillon, Pericàs: "An online guided tuning approach to run CNN pipelines on
edge devices" (CF 2021). Only a summary was available; the steps of the search are reconstructed.
"""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.planning.enumeration import routes
from profiler.planning.moves import is_possible, joined, moved, weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import Route, RouteProblem

_POPULATION: Final = 8
_RANKS: Final = 8
"""Neighbours of a route in the table, on either side."""
_EXCESS: Final = 0.5
"""Share by which the hint of a route may exceed that of the best one."""
_GENERATIONS: Final = 2
"""Generations in a row without a gain after which the search ends."""


def pipe_search(problem: RouteProblem, work: Sequence[float] | None = None) -> Search:
    """Try the routes that look best by the work of their stages, and what is close to them.

    It ends when some generations bring no gain. The work of the segments is that of `weights` if
    it is not given.

    Raises:
        InvalidInput: there are too many routes for a table.
    """
    hints = _hints(problem, weights(problem) if work is None else work)
    table = sorted(hints, key=hints.__getitem__)
    ranks = {route: rank for rank, route in enumerate(table)}
    measured: dict[Route, float] = {}
    children, failures = table[:_POPULATION], 0
    while children and failures < _GENERATIONS:
        best_s = min(measured.values(), default=math.inf)
        for route in children:
            measured[route] = (yield route).seconds(problem.queries)
        failures = 0 if min(measured.values()) < best_s else failures + 1
        parents = sorted(measured, key=measured.__getitem__)[: _POPULATION // 2]
        most = (1 + _EXCESS) * hints[parents[0]]
        near = [
            each
            for parent in parents
            for each in [
                *table[max(0, ranks[parent] - _RANKS) : ranks[parent] + _RANKS + 1],
                *_neighbours(problem, parent),
            ]
        ]
        children = [
            each for each in dict.fromkeys(near) if each not in measured and hints[each] <= most
        ]
    return min(measured, key=measured.__getitem__, default=None)


def _hints(problem: RouteProblem, work: Sequence[float]) -> dict[Route, float]:
    """Return the work of the slowest stage of each route, by the speeds of the workers."""
    before = np.concatenate([[0.0], np.cumsum(work)]).tolist()
    whole_s = {worker.name: worker.seconds[0][-1] for worker in problem.workers}
    return {
        route: max(
            (before[last] - before[first]) * whole_s[worker] for worker, first, last in route.legs
        )
        for route in routes(problem)
        if is_possible(problem, route)
    }


def _neighbours(problem: RouteProblem, route: Route) -> Iterator[Route]:
    """Yield the possible routes with one boundary moved, or two workers exchanged."""
    legs, cuts = range(len(route.legs)), [leg.last for leg in route.legs[:-1]]
    pairs = permutations(legs, 2)
    found = [moved(route, *pair) for pair in pairs if abs(pair[0] - pair[1]) == 1]
    for one, other in combinations(legs, 2):
        names = [leg.worker for leg in route.legs]
        names[one], names[other] = names[other], names[one]
        found.append(joined(problem.chain.end, cuts, names))
    return (each for each in found if each is not None and is_possible(problem, each))
