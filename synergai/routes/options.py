"""Options to run queries: whole on a worker, replicas, or routes of stages."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, Final

from synergai.routes.optimal import optimal_route
from synergai.routes.plan import RoutePlan, Share, partition, pour
from synergai.routes.planner import ROUTE_PLANNERS, run_search
from synergai.routes.problem import Leg, Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.routes.problem import RouteProblem

OPTIMAL: Final = "optimal"
MAX_LEGS: Final = 8
"""Legs of the longest route that is weighed."""


class RouteOption(RoutePlan, frozen=True, kw_only=True):
    """A way to run the queries of a problem.

    Attributes:
        name: such as ``whole on edge-1`` or ``replicas``.
    """

    name: str


def whole_options(problem: RouteProblem) -> list[RouteOption]:
    """Return the options that do not split the engine: each worker alone, and all as replicas."""
    end = problem.chain.end
    alone = [
        _of_route(problem, f"whole on {worker.name}", Route((Leg(worker.name, 0, end),)))
        for worker in problem.workers
        if problem.fits(worker, 0, end)
    ]
    if len(alone) < 2 or problem.queries < 2:
        return alone
    routes = [option.shares[0].route for option in alone]
    return [*alone, RouteOption(name="replicas", shares=pour(problem, routes))]


def staged_options(problem: RouteProblem, planner: str) -> list[RouteOption]:
    """Return options with stages: the route of a planner, or all that `optimal` has to offer.

    These are the best route of each number of legs, and several routes side by side. A planner may
    find none that is better than the whole engine.
    """
    if planner != OPTIMAL:
        search = ROUTE_PLANNERS.create(planner, {}).search(problem)
        route, _ = run_search(search, problem.times)
        found = [] if route is None else [_of_route(problem, f"route of {planner}", route)]
        return [option for option in found if option.is_split]
    most = min(problem.chain.end, len(problem.workers), MAX_LEGS)
    options = [
        _of_route(problem, f"{legs} stages", route)
        for legs in range(2, most + 1)
        if (route := optimal_route(problem, legs)) is not None
    ]
    plan = partition(problem)
    if plan is not None and plan.is_split and len(plan.shares) > 1:
        options.append(RouteOption(name="several routes", shares=plan.shares))
    return options


def split_options(problem: RouteProblem) -> Iterator[tuple[int, RouteOption]]:
    """Yield each position that can be cut, with the best two workers for its sides."""
    end = problem.chain.end
    for position in range(1, end):
        options = [
            _of_route(
                problem,
                f"{ahead.name}, {behind.name}",
                Route((Leg(ahead.name, 0, position), Leg(behind.name, position, end))),
            )
            for ahead, behind in permutations(problem.workers, 2)
            if problem.fits(ahead, 0, position)
            and problem.fits(behind, position, end)
            and ahead.seconds[0][position] + behind.seconds[position][end] < math.inf
        ]
        if options:
            yield position, min(options, key=lambda option: option.seconds)


def _of_route(problem: RouteProblem, name: str, route: Route) -> RouteOption:
    share = Share(route, problem.times(route), problem.queries)
    return RouteOption(name=name, shares=(share,))
