"""A range of queries over several routes at once, which share no worker.

Routes of one leg are replicas: whole engines, over which the queries are poured. Whether replicas,
chains or both end first depends on the workers and links.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from synergai.routes.division import Division
from synergai.routes.optimal import optimal_route
from synergai.routes.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.routes.problem import Route, RouteProblem, RouteTimes, RouteWorker

_ROUNDS: Final = 3


class Share(NamedTuple):
    """What a route gets of a range."""

    route: Route
    queries: int


class Plan(Struct, frozen=True):
    """Routes that share no worker, and the time until the last of them has ended."""

    shares: tuple[Share, ...]
    seconds: float


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
    """Return the plan of the best routes over some sets of workers."""
    shares = [math.ceil(problem.queries / len(sets))] * len(sets)
    best = None
    for _ in range(_ROUNDS):
        # The best route over a set depends on its share, and the shares depend on the routes.
        planned = [
            (workers, route)
            for workers, share in zip(sets, shares, strict=True)
            if (route := _route(problem, workers, share)) is not None
        ]
        if not planned:
            return None
        sets, routes = zip(*planned, strict=True)
        times = [problem.times(route) for route in routes]
        before, shares = shares, pour(times, problem.queries)
        used = [each for each in zip(routes, times, shares, strict=True) if each[2]]
        plan = Plan(
            tuple(Share(route, share) for route, _, share in used),
            max(taken.seconds(share) for _, taken, share in used),
        )
        best = plan if best is None or plan.seconds < best.seconds else best
        if shares == before:
            break
    return best


def _route(problem: RouteProblem, workers: Sequence[RouteWorker], queries: int) -> Route | None:
    return optimal_route(replace(problem, workers=tuple(workers), queries=max(1, queries)))


def pour(times: Sequence[RouteTimes], queries: int) -> list[int]:
    """Return the queries for each route, such that the last of them ends as early as possible."""
    by_latency = sorted(times, key=lambda each: each.latency_s)
    rate = filling = end_s = 0.0
    for each in by_latency:
        if rate and end_s <= each.latency_s:
            break
        rate += 1 / each.interval_s
        filling += each.latency_s / each.interval_s - 1
        # When the routes so far would have ended if queries could be divided.
        end_s = (queries + filling) / rate
    # The queries that end before then, and one more for each of some routes.
    shares = [max(0, math.ceil((end_s - each.latency_s) / each.interval_s)) for each in times]
    for _ in range(queries - sum(shares)):
        first = min(range(len(times)), key=lambda i: times[i].seconds(shares[i] + 1))
        shares[first] += 1
    return shares
