"""Division of workers into sets, each of which runs a route for a part of a range of queries.

The routes over a set are known by the least latency for some bounds on the interval. Between two
bounds there may be a better route, so the division that is found may not be the best one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.routes.solution import Solution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from synergai.routes.tables import Tables

_BOUNDS: Final = 16
_HALVINGS: Final = 30


class Division:
    """Divides workers for the earliest end. At least one route must be possible."""

    def __init__(self, tables: Tables) -> None:
        free = Solution.of_latency(tables).least
        least_s = Solution.of_interval(tables).least.min()
        bounds = np.geomspace(least_s, free[free < np.inf].max(), _BOUNDS)
        bounds *= 1 + 1e-9  # intervals are below them
        bounds = np.array([np.inf, *bounds])
        self._latencies = Solution.of_latency(tables, bounds.tolist()).least.min(axis=1)
        # No interval is above the latency.
        limits = bounds[:, np.newaxis]
        possible = self._latencies < np.inf
        self._intervals = np.where(possible, np.minimum(self._latencies, limits), 1.0)
        self._counts = tables.counts
        self._parts = [
            np.flatnonzero((self._counts <= of_set).all(axis=1))[1:] for of_set in self._counts
        ]

    def best(self, queries: int) -> list[NDArray[np.int64]]:
        """Return the members of each group in each set that gets a part of the queries."""
        low_s, high_s = 0.0, queries * float(self._latencies.min())
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            if self._divided(middle_s)[0][-1] < queries:
                low_s = middle_s
            else:
                high_s = middle_s
        _, parts = self._divided(high_s)
        sets, rest = [], len(self._counts) - 1
        while rest:
            sets.append(self._counts[parts[rest]])
            rest -= parts[rest]
        return sets

    def _divided(self, end_s: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the most queries until a time, and the first part, by set of workers."""
        alone = np.maximum(np.floor((end_s - self._latencies) / self._intervals) + 1, 0).max(axis=0)
        divided, first = np.zeros(len(alone)), np.zeros(len(alone), dtype=int)
        for number in range(1, len(alone)):
            parts = self._parts[number]
            queries = alone[parts] + divided[number - parts]
            first[number] = parts[queries.argmax()]
            divided[number] = queries.max()
        return divided, first
