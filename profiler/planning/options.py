"""Options to run the queries of a problem, and the choice among them.

``synergai plan`` and the controller of a gateway weigh the same options by the same rule.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.planning.enumeration import routes
from profiler.planning.moves import seconds
from profiler.planning.optimal import optimal_route
from profiler.planning.plan import RoutePlan, partition, pour
from synergai.core.routes.planner import ROUTE_PLANNERS, run_search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.core.routes.problem import RouteProblem

OPTIMAL: Final = "optimal"
MAX_LEGS: Final = 8
"""Legs of the longest route that is weighed."""


def whole_options(problem: RouteProblem) -> list[RoutePlan]:
    """Return the options that do not split the engine: each worker alone, and all as replicas."""
    whole = list(routes(problem, legs=1))
    alone = [
        RoutePlan(pour(problem, [route]), f"whole on {route.legs[0].worker}") for route in whole
    ]
    if len(alone) < 2 or problem.queries < 2:
        return alone
    return [*alone, RoutePlan(pour(problem, whole), "replicas")]


def staged_options(problem: RouteProblem, planner: str) -> list[RoutePlan]:
    """Return options with stages: the route of a planner, or all that `optimal` has to offer.

    These are the best route of each number of legs, and several routes side by side. A planner may
    find none that is better than the whole engine.
    """
    if planner != OPTIMAL:
        route, _ = run_search(ROUTE_PLANNERS.get(planner)(problem), problem.times)
        if route is None or len(route.legs) == 1:
            return []
        return [RoutePlan(pour(problem, [route]), f"route of {planner}")]
    most = min(problem.chain.end, len(problem.workers), MAX_LEGS)
    options = [
        RoutePlan(pour(problem, [route]), f"{legs} stages")
        for legs in range(2, most + 1)
        if (route := optimal_route(problem, legs)) is not None
    ]
    plan = partition(problem)
    if plan is not None and plan.is_split and len(plan.shares) > 1:
        options.append(replace(plan, name="several routes"))
    return options


def split_options(problem: RouteProblem) -> Iterator[tuple[int, RoutePlan]]:
    """Yield each position that can be cut, with the best two workers for its sides."""
    for end, cut_there in groupby(routes(problem, legs=2), lambda route: route.legs[0].last):
        best = min(cut_there, key=lambda route: seconds(problem, route))
        if end < problem.chain.end and seconds(problem, best) < math.inf:
            workers = ", ".join(leg.worker for leg in best.legs)
            yield end, RoutePlan(pour(problem, [best]), workers)


def choose(
    options: Sequence[RoutePlan], least_gain: float, deadline_s: float | None = None
) -> RoutePlan:
    """Return the fastest option, or one that does not split the engine if a split hardly pays.

    Args:
        least_gain: share of the time that a split has to save, unless only it meets the deadline.
    """
    fastest = min(options, key=lambda option: option.seconds)
    whole = [option for option in options if not option.is_split]
    if fastest.is_split and whole:
        best = min(whole, key=lambda option: option.seconds)
        is_late = deadline_s is not None and best.seconds > deadline_s
        if not is_late and fastest.seconds > (1 - least_gain) * best.seconds:
            return best
    return fastest
