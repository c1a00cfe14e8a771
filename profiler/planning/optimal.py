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

from profiler.planning.tables import Tables
from synergai.core.routes.planner import found
from synergai.core.routes.problem import Leg, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import RouteProblem


# A partial route ends at a position, has used a set of workers, and its last leg is on one of them.
# Of those that agree in all three, only the best one can be a part of the best route. Positions are
# visited in the order of the data flow; at each one, all sets, last workers and bounds are computed
# at once.


class Solution:
    """Routes of the least latency or interval, one for each of several bounds on the interval.

    Attributes:
        least: latency or interval of the best route by bound, group of the last leg and set of
            workers; infinite where there is none.
    """

    def __init__(
        self,
        tables: Tables,
        join: np.ufunc,
        stages: NDArray[np.float64],
        hops: NDArray[np.float64],
    ) -> None:
        # By position, and then by bound.
        positions, _, bounds, groups = stages.shape
        self._tables, self._join = tables, join
        self._stages = stages[..., np.newaxis]
        self._hops = hops[..., :-1, np.newaxis]
        # Of routes that end at a position: by position, bound, and slot of the tables. The last two
        # slots stand for no leg and for the source of the queries.
        self._ended = np.full((positions, bounds, tables.joined.size + 2), np.inf)
        self._ended[0, :, -1] = 0.0
        # Of those whose tensor has arrived: by position, bound, next group, and set with it.
        self._arrived = np.empty((positions, bounds, *tables.joined.shape))
        joined = np.empty_like(self._arrived)
        by_group = self._ended[..., :-2].reshape(self._arrived.shape)
        begins = (stages < np.inf).any(axis=(2, 3)).argmax(axis=1).tolist()
        for position, begin in enumerate(begins):
            if position:
                ways = joined[begin:position]
                join(
                    self._arrived[begin:position], self._stages[position, begin:position], out=ways
                )
                np.minimum.reduce(ways, out=by_group[position])
            arriving = self._ended[position].take(tables.senders, axis=1)
            join(arriving, self._hops[position], out=arriving)
            np.minimum.reduce(arriving, axis=1, out=self._arrived[position])
        least = np.full((bounds, groups, len(tables.counts) + 1), np.inf)
        group = np.arange(groups)[:, np.newaxis]
        least[:, group, tables.joined] = join(by_group[-1], hops[-1, :, :-1, -1:])
        self.least = least[..., :-1]

    @classmethod
    def of_latency(cls, tables: Tables, bounds_s: Sequence[float] = (np.inf,)) -> Solution:
        """Return the routes of the least latency among those with an interval below a bound."""
        below = np.array(bounds_s)[:, np.newaxis]
        stages = tables.stages[:, :, np.newaxis]
        hops, intervals = tables.hops[:, np.newaxis], tables.intervals[:, np.newaxis]
        return cls(
            tables,
            np.add,
            np.where(stages < below, stages, np.inf),
            np.where(intervals < below[..., np.newaxis], hops, np.inf),
        )

    @classmethod
    def of_interval(cls, tables: Tables) -> Solution:
        """Return the routes of the least interval, without a bound."""
        stages, intervals = tables.stages[:, :, np.newaxis], tables.intervals[:, np.newaxis]
        return cls(tables, np.maximum, stages, intervals)

    def best(
        self, bound: int = 0, legs: int | None = None, below_s: float = np.inf
    ) -> Route | None:
        """Return the best route of `legs` legs; by default, the best one with the fewest legs.

        Args:
            below_s: its latency or interval must be below this.
        """
        least = self.least[bound].min(axis=0)
        members = self._tables.members
        if legs is not None:
            least = np.where(members == legs, least, np.inf)
        if not least.min() < below_s:
            return None
        return self._route(bound, int(np.lexsort((members, least))[0]))

    def _route(self, bound: int, chosen: int) -> Route:
        tables = self._tables
        group, position = int(self.least[bound, :, chosen].argmin()), len(self._ended) - 1
        column = int((tables.joined[group] == chosen).argmax())
        backwards = []
        while position:
            arrived = self._arrived[:position, bound, group, column]
            first = int(
                self._join(arrived, self._stages[position, :position, bound, group, 0]).argmin()
            )
            backwards.append((group, first, position))
            senders = tables.senders[:, group, column]
            ended = self._ended[first, bound, senders]
            sender = self._join(ended, self._hops[first, bound, :, group, 0]).argmin()
            group, column = divmod(int(senders[sender]), tables.joined.shape[1])
            position = first
        members = [iter(workers) for workers in tables.groups]
        return Route(
            tuple(Leg(next(members[group]), first, last) for group, first, last in backwards[::-1])
        )


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
