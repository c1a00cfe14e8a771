"""Planner of the fastest route.

For one query, it is the one of the least latency. For a range, the interval matters as well: the
least latency is computed for some bounds on the interval, and then for others between them, until
no route can be faster than the best one that was found.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from profiler.planning.solution import Solution
from profiler.planning.tables import Tables
from synergai.core.routes.planner import found

if TYPE_CHECKING:
    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import Route, RouteProblem

_BOUNDS: Final = 3
"""Bounds that are computed at once, which is faster than one by one."""
_ROUNDING: Final = 1e-12


def optimal(problem: RouteProblem) -> Search:
    """Plan the fastest route for one query or a range of them."""
    return found(optimal_route(problem))


class _Gap(NamedTuple):
    """Intervals from `low_s` to below `high_s`, with which no route has a lower latency."""

    low_s: float
    high_s: float
    latency_s: float


def optimal_route(problem: RouteProblem, legs: int | None = None) -> Route | None:
    """Return the fastest route; None if none is possible."""
    if not problem.workers:
        return None
    tables = Tables(problem)
    following = problem.queries - 1
    if not following:
        return Solution.of_latency(tables).best(legs=legs)
    best = Solution.of_interval(tables).best(legs=legs)
    if best is None:
        return None
    times = problem.times(best)
    best_s = times.seconds(problem.queries)
    # No interval is above the latency.
    gaps = [_Gap(times.interval_s, best_s / problem.queries, 0.0)]
    while gaps:
        number = math.ceil(_BOUNDS / len(gaps))
        edges = [np.linspace(gap.high_s, gap.low_s, number + 1).tolist() for gap in gaps]
        parts = [part for each in edges for part in pairwise(each)]
        solution = Solution.of_latency(tables, [high_s for high_s, _ in parts])
        below = []
        for bound, (_, low_s) in enumerate(parts):
            # Unless even the least latency and interval are too long.
            limit_s = best_s - following * low_s
            if (route := solution.best(bound, legs, limit_s)) is not None:
                times = problem.times(route)
                below.append(_Gap(low_s, times.interval_s, times.latency_s))
                if times.seconds(problem.queries) < best_s:
                    best, best_s = route, times.seconds(problem.queries)
        # A lower interval does not lower the latency. This is where it can still pay.
        payable = [
            gap._replace(
                high_s=min(gap.high_s, (best_s - gap.latency_s) / following) * (1 - _ROUNDING)
            )
            for gap in below
        ]
        gaps = [gap for gap in payable if gap.high_s > gap.low_s]
    return best
