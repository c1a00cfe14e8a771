"""Plans: routes side by side that share the queries of a problem."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.routes.problem import Route, RouteProblem, RouteTimes


class Share(NamedTuple):
    """Queries that a route serves, and what it takes for one."""

    route: Route
    times: RouteTimes
    queries: int

    @property
    def seconds(self) -> float:
        """Time until its last query has ended."""
        return self.times.seconds(self.queries)


class Plan(Struct, frozen=True, kw_only=True):
    """Routes that have no worker in common, each with some of the queries."""

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


def pour(problem: RouteProblem, routes: Sequence[Route]) -> tuple[Share, ...]:
    """Return the shares of routes such that the last query ends as early as possible.

    A route without a query has no share.
    """
    times = [problem.times(route) for route in routes]
    counts = _counts(times, problem.queries)
    shares = map(Share, routes, times, counts)
    return tuple(share for share in shares if share.queries)


def _counts(times: Sequence[RouteTimes], queries: int) -> list[int]:
    """Return the queries of each route."""
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
