"""Options to run the queries of a problem, and the choice among them.

``synergai plan`` and the controller of a gateway weigh the same options by the same rule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.planning.enumeration import routes
from profiler.planning.optimal import optimal_route
from profiler.planning.plan import RoutePlan, partition, pour
from profiler.planning.sharing import shared_routes
from synergai.core.routes.planner import ROUTE_PLANNERS, run_search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.routes.deployment import Objective
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

    These are the best route of each number of legs, several routes side by side, and stages that
    workers share. A planner may find none that is better than the whole engine.
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
    if min(problem.queries, len(problem.workers) - 1) > 1:
        shared = [
            RoutePlan(pour(problem, each), "shared stages") for each in shared_routes(problem)
        ]
        options += sorted(shared, key=lambda each: each.seconds)[:1]
    return options


def cost(problem: RouteProblem, plan: RoutePlan, objective: Objective = "throughput") -> float:
    """Return what an objective minimises.

    That is the time of all queries or of one query, or the energy of a query in joules, idle power
    of other workers not included. For fairness, it is the time of all queries over Jain's index of
    the times that the workers are busy (Jain, Chiu, Hawe 1984): a plan may take as many times
    longer as it shares the load more fairly.
    """
    if objective == "throughput":
        return plan.seconds
    if objective == "latency":
        return plan.latency_s
    busy_s = dict.fromkeys((worker.name for worker in problem.workers), 0.0)
    for share in plan.shares:
        for leg, taken_s in zip(share.route.legs, share.times.stages, strict=True):
            busy_s[leg.worker] += share.queries * taken_s
    if objective == "energy":
        return sum(each.watts * busy_s[each.name] for each in problem.workers) / problem.queries
    index = sum(busy_s.values()) ** 2 / (len(busy_s) * sum(each**2 for each in busy_s.values()))
    return plan.seconds / index


def choose(
    problem: RouteProblem,
    options: Sequence[RoutePlan],
    least_gain: float,
    *,
    deadline_s: float = math.inf,
    objective: Objective = "throughput",
) -> RoutePlan:
    """Return the best option, or one that does not split the engine if a split hardly pays.

    Args:
        least_gain: share of the cost that a split has to save, unless only it meets the deadline.
    """

    def rank(option: RoutePlan) -> tuple[float, float, float]:
        late_s = max(0.0, option.seconds - deadline_s)
        return late_s, cost(problem, option, objective), option.seconds

    best = min(options, key=rank)
    whole = [option for option in options if not option.is_split]
    if best.is_split and whole:
        other = min(whole, key=rank)
        gains = rank(best)[1] <= (1 - least_gain) * rank(other)[1]
        if not gains and not rank(other)[0]:
            return other
    return best
