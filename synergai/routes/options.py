"""Options to run queries: whole on a worker, replicas, or routes of stages."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from synergai.routes.optimal import optimal_route
from synergai.routes.planner import ROUTE_PLANNERS, run_search
from synergai.routes.problem import Leg, Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.routes.problem import RouteProblem, RouteTimes

OPTIMAL: Final = "optimal"
MAX_LEGS: Final = 8
"""Legs of the longest route that is weighed."""
_BISECTIONS: Final = 100


class Share(NamedTuple):
    """Queries that a route serves, and what it takes for one."""

    route: Route
    times: RouteTimes
    queries: int

    @property
    def seconds(self) -> float:
        """Time until its last query has ended."""
        return self.times.seconds(self.queries)


class Option(Struct, frozen=True):
    """A way to run the queries of a problem.

    Attributes:
        name: such as ``whole on edge-1`` or ``replicas``.
        shares: routes that run side by side, each with some of the queries.
    """

    name: str
    shares: tuple[Share, ...]

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
        return 1 / sum(1 / share.times.interval_s for share in self.shares)

    @property
    def seconds(self) -> float:
        """Time until the last query has ended."""
        return max(share.seconds for share in self.shares)


def whole_options(problem: RouteProblem) -> list[Option]:
    """Return the options that do not split the engine: each worker alone, and all as replicas."""
    end = problem.chain.end
    alone = [
        _of_route(problem, f"whole on {worker.name}", Route((Leg(worker.name, 0, end),)))
        for worker in problem.workers
        if problem.fits(worker, 0, end)
    ]
    if len(alone) < 2 or problem.queries < 2:
        return alone
    return [*alone, _replicas([option.shares[0] for option in alone], problem.queries)]


def staged_options(problem: RouteProblem, planner: str) -> list[Option]:
    """Return routes of several stages: the one of a planner, or the best of each number of legs.

    A planner may find none that is better than the whole engine.
    """
    routes: list[tuple[str, Route | None]]
    if planner == OPTIMAL:
        most = min(problem.chain.end, len(problem.workers), MAX_LEGS)
        routes = [(f"{legs} stages", optimal_route(problem, legs)) for legs in range(2, most + 1)]
    else:
        search = ROUTE_PLANNERS.create(planner, {}).search(problem)
        routes = [(f"route of {planner}", run_search(search, problem.times)[0])]
    return [
        _of_route(problem, name, route)
        for name, route in routes
        if route is not None and len(route.legs) > 1
    ]


def split_options(problem: RouteProblem) -> Iterator[tuple[int, Option]]:
    """Yield each place that can be cut, with the best two workers for its sides."""
    end = problem.chain.end
    for place in range(1, end):
        options = [
            _of_route(
                problem,
                f"{ahead.name}, {behind.name}",
                Route((Leg(ahead.name, 0, place), Leg(behind.name, place, end))),
            )
            for ahead, behind in permutations(problem.workers, 2)
            if problem.fits(ahead, 0, place)
            and problem.fits(behind, place, end)
            and ahead.seconds[0][place] + behind.seconds[place][end] < math.inf
        ]
        if options:
            yield place, min(options, key=lambda option: option.seconds)


def _of_route(problem: RouteProblem, name: str, route: Route) -> Option:
    return Option(name, (Share(route, problem.times(route), problem.queries),))


def _replicas(alone: Sequence[Share], queries: int) -> Option:
    """Return the option in which the workers end together, as far as whole queries allow."""

    def counts(seconds: float) -> list[int]:
        return [
            max(0, 1 + math.floor((seconds - share.times.latency_s) / share.times.interval_s))
            for share in alone
        ]

    low, high = 0.0, min(share.seconds for share in alone)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(counts(middle)) >= queries else (middle, high)
    left, shares = queries, []
    for share, count in zip(alone, counts(high), strict=True):
        taken = min(count, left)
        left -= taken
        if taken:
            shares.append(share._replace(queries=taken))
    return Option("replicas", tuple(shares))
