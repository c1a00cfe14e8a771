"""Planner of the fastest route.

For one query, it is the one of the least latency. For a range, the interval matters as well. The
routes that have the least latency below some bound on the interval are compared, by lowering the
bound. No other route can be the fastest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.routes.planner import found
from synergai.routes.solution import Solution
from synergai.routes.tables import Tables

if TYPE_CHECKING:
    from synergai.routes.planner import Search
    from synergai.routes.problem import Route, RouteProblem

_ROUNDING: Final = 1e-12


class Optimal:
    """Finds the fastest route for one query or a range of them."""

    def search(self, problem: RouteProblem) -> Search:
        """Return the fastest route."""
        return found(optimal_route(problem))


def optimal_route(problem: RouteProblem, legs: int | None = None) -> Route | None:
    """Return the fastest route; None if none is possible.

    Args:
        legs: the number of legs that it must have.
    """
    if not problem.workers:
        return None
    tables = Tables(problem)
    if problem.queries == 1:
        return Solution.of_latency(tables).best(legs)
    best = Solution.of_interval(tables).best(legs)
    if best is None:
        return None
    times = problem.times(best)
    least_s, best_s, below_s = times.interval_s, times.seconds(problem.queries), math.inf
    while below_s > least_s:
        route = Solution.of_latency(tables, below_s).best(legs)
        if route is None:
            break
        times = problem.times(route)
        if times.seconds(problem.queries) < best_s:
            best, best_s = route, times.seconds(problem.queries)
        # A lower interval does not lower the latency. This is where it can still pay.
        below_s = min(times.interval_s, (best_s - times.latency_s) / (problem.queries - 1))
        below_s *= 1 - _ROUNDING
    return best
