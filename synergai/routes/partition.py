"""A range of queries over several routes at once, which share no worker.

Routes of one leg are replicas: whole engines, over which the queries are poured. Whether replicas,
chains or both end first depends on the workers and links.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.routes.division import Division
from synergai.routes.optimal import optimal_route
from synergai.routes.plan import Plan, pour
from synergai.routes.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.routes.problem import Route, RouteProblem, RouteWorker

_ROUNDS: Final = 3


def partition(problem: RouteProblem) -> Plan | None:
    """Return a plan for a range of queries; None if none is possible.

    Neither replicas nor a single route end earlier. Of plans that end at the same time, replicas
    come first, then a single route.
    """
    if optimal_route(problem) is None:
        return None
    divisions = ([[each] for each in problem.workers], [problem.workers], _divided(problem))
    plans = [plan for sets in divisions if (plan := _plan(problem, sets)) is not None]
    return min(plans, key=lambda plan: plan.seconds, default=None)


def _divided(problem: RouteProblem) -> list[list[RouteWorker]]:
    """Return sets of workers over which routes end early together."""
    workers = {worker.name: worker for worker in problem.workers}
    tables = Tables(problem)
    groups = [list(group) for group in tables.groups]
    sets = [
        [
            workers.pop(group.pop())
            for group, count in zip(groups, counts, strict=True)
            for _ in range(count)
        ]
        for counts in Division(tables).best(problem.queries)
    ]
    return [*sets, *([worker] for worker in workers.values())]


def _plan(problem: RouteProblem, sets: Sequence[Sequence[RouteWorker]]) -> Plan | None:
    """Return the plan of the best routes over some sets of workers; None if none has a route."""
    best = None
    counts = [math.ceil(problem.queries / len(sets))] * len(sets)
    for _ in range(_ROUNDS):
        # The best route over a set depends on its queries, and these depend on the routes.
        routes = [
            optimal_route(replace(problem, workers=tuple(workers), queries=count))
            for workers, count in zip(sets, counts, strict=True)
        ]
        possible = [route for route in routes if route is not None]
        if not possible:
            return None
        plan = Plan(shares=pour(problem, possible))
        best = plan if best is None or plan.seconds < best.seconds else best
        served: dict[Route | None, int] = {share.route: share.queries for share in plan.shares}
        before, counts = counts, [served.get(route, 1) for route in routes]
        if counts == before:
            break
    return best
