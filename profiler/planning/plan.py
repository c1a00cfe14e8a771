"""Plans: routes side by side that share the queries of a problem, and maybe workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from profiler.planning.optimal import Solution, optimal_route
from profiler.planning.tables import Tables
from synergai.core.routes.ranking import rank_chains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.core.routes.problem import Route, RouteProblem, RouteTimes, RouteWorker


class Share(NamedTuple):
    """Queries that a route serves, and what it takes for one.

    Attributes:
        interval_s: time between two of them; longer than that of its times if routes share workers.
    """

    route: Route
    times: RouteTimes
    queries: int
    interval_s: float

    @property
    def seconds(self) -> float:
        """Time until its last query has ended."""
        return self.times.latency_s + (self.queries - 1) * self.interval_s


class RoutePlan(Struct, frozen=True):
    """Routes, each with some of the queries.

    Attributes:
        name: such as ``whole on edge-1`` or ``replicas``.
    """

    shares: tuple[Share, ...]
    name: str = ""

    @property
    def is_split(self) -> bool:
        """Whether an engine is cut into stages."""
        return any(len(share.route.legs) > 1 for share in self.shares)

    @property
    def latency_s(self) -> float:
        """Time of one query alone, on the fastest of its routes."""
        return min(share.times.latency_s for share in self.shares)

    @property
    def interval_s(self) -> float:
        """Mean time between two queries of a long range."""
        return 1 / sum(1 / share.interval_s for share in self.shares)

    @property
    def seconds(self) -> float:
        """Time until the last query has ended."""
        return max(share.seconds for share in self.shares)


def pour(problem: RouteProblem, routes: Sequence[Route]) -> tuple[Share, ...]:
    """Return the shares of routes such that the last query ends as early as possible.

    A route without a query has no share. If routes have workers in common, queries may change from
    one to another behind each stage.
    """
    workers = [leg.worker for route in routes for leg in route.legs]
    if len(set(workers)) < len(workers):
        intervals = _shared(problem, routes)
    else:
        intervals = {route: problem.times(route).interval_s for route in routes}
    shares = [Share(each, problem.times(each), 0, intervals[each]) for each in intervals]
    counts = _counts(shares, problem.queries)
    return tuple(
        share._replace(queries=count) for share, count in zip(shares, counts, strict=True) if count
    )


def _shared(problem: RouteProblem, routes: Sequence[Route]) -> dict[Route, float]:
    """Return the intervals of the routes that the legs of some routes make up."""
    chain, workers = problem.chain, {each.name: each for each in problem.workers}
    legs = {leg for route in routes for leg in route.legs}
    shares = chain.shares or (1.0,) * len(chain.sizes)
    ranked = rank_chains(
        {leg: workers[leg.worker].seconds[leg.first][leg.last] for leg in legs},
        dict(enumerate(chain.sizes)),
        problem.links,
        source=problem.source,
        queries=problem.queries,
        continuing={leg[1:]: shares[leg.last] / shares[leg.first] for leg in legs},
    )
    return {route: 1 / rate for route, rate in ranked[0].rates.items()}


def _counts(shares: Sequence[Share], queries: int) -> list[int]:
    by_latency = sorted(shares, key=lambda each: each.times.latency_s)
    rate = filling = end_s = 0.0
    for each in by_latency:
        latency_s = each.times.latency_s
        if rate and end_s <= latency_s:
            break
        rate += 1 / each.interval_s
        filling += latency_s / each.interval_s - 1
        # When the routes so far would have ended if queries could be divided.
        end_s = (queries + filling) / rate
    # The queries that end before then, and one more for each of some routes.
    counts = [
        max(0, math.ceil((end_s - each.times.latency_s) / each.interval_s)) for each in shares
    ]
    for _ in range(queries - sum(counts)):
        first = min(
            range(len(shares)), key=lambda i: shares[i]._replace(queries=counts[i] + 1).seconds
        )
        counts[first] += 1
    return counts


_ROUNDS: Final = 3


def partition(problem: RouteProblem) -> RoutePlan | None:
    """Return a plan for a range of queries; None if none is possible.

    Neither replicas nor a single route end earlier. Of plans that end at the same time, replicas
    come first, then a single route.
    """
    if optimal_route(problem) is None:
        return None
    divisions = ([[each] for each in problem.workers], [problem.workers], _divided(problem))
    plans = [plan for sets in divisions if (plan := _plan(problem, sets)) is not None]
    return min(plans, key=lambda plan: plan.seconds, default=None)


def _plan(problem: RouteProblem, sets: Sequence[Sequence[RouteWorker]]) -> RoutePlan | None:
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
        plan = RoutePlan(pour(problem, possible))
        best = plan if best is None or plan.seconds < best.seconds else best
        served: dict[Route | None, int] = {share.route: share.queries for share in plan.shares}
        before, counts = counts, [served.get(route, 1) for route in routes]
        if counts == before:
            break
    return best


_BOUNDS: Final = 16
_HALVINGS: Final = 30


def _divided(problem: RouteProblem) -> list[list[RouteWorker]]:
    """Return sets of workers over which routes end early together, if at least one is possible."""
    tables = Tables(problem)
    free = Solution.of_latency(tables).least
    least_s = Solution.of_interval(tables).least.min()
    bounds = np.geomspace(least_s, free[free < np.inf].max(), _BOUNDS)
    bounds *= 1 + 1e-9  # intervals are below them
    bounds = np.array([np.inf, *bounds])
    latencies = Solution.of_latency(tables, bounds.tolist()).least.min(axis=1)
    # No interval is above the latency.
    intervals = np.where(latencies < np.inf, np.minimum(latencies, bounds[:, np.newaxis]), 1.0)
    all_parts = [
        np.flatnonzero((tables.counts <= of_set).all(axis=1))[1:] for of_set in tables.counts
    ]

    def divided(end_s: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the most queries until a time, and the first part, by set of workers."""
        alone = np.maximum(np.floor((end_s - latencies) / intervals) + 1, 0).max(axis=0)
        most, first = np.zeros(len(alone)), np.zeros(len(alone), dtype=int)
        for number, parts in enumerate(all_parts[1:], 1):
            served = alone[parts] + most[number - parts]
            first[number] = parts[served.argmax()]
            most[number] = served.max()
        return most, first

    low_s, high_s = 0.0, problem.queries * float(latencies.min())
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if divided(middle_s)[0][-1] < problem.queries:
            low_s = middle_s
        else:
            high_s = middle_s
    _, first = divided(high_s)
    workers = {worker.name: worker for worker in problem.workers}
    groups = [list(group) for group in tables.groups]
    sets, rest = [], len(tables.counts) - 1
    while rest:
        counts = zip(groups, tables.counts[first[rest]], strict=True)
        sets.append([workers.pop(group.pop()) for group, count in counts for _ in range(count)])
        rest -= first[rest]
    return [*sets, *([worker] for worker in workers.values())]
