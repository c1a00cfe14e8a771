"""A planner of routes in a package of its own: inputs stay on a worker at the edge."""

from __future__ import annotations

import math
from itertools import product

from synergai.core.routes.planner import Search, found
from synergai.core.routes.problem import Leg, Route, RouteProblem


def edge_first(problem: RouteProblem) -> Search:
    """Plan the fastest route of two stages whose first one is on a worker named ``edge…``."""
    best, best_s = None, math.inf
    end = problem.chain.end
    for first, second, cut in product(problem.workers, problem.workers, range(1, end)):
        if not first.name.startswith("edge") or first is second:
            continue
        if problem.fits(first, 0, cut) and problem.fits(second, cut, end):
            route = Route((Leg(first.name, 0, cut), Leg(second.name, cut, end)))
            seconds = problem.times(route).seconds(problem.queries)
            if seconds < best_s:
                best, best_s = route, seconds
    return found(best)
