"""The best routes over all sets of workers: an exact dynamic programme.

A partial route ends at a place, has used a set of workers, and its last leg is on one of them. Of
those that agree in all three, only the best one can be a part of the best route.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from synergai.routes.problem import Leg, Route

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from synergai.routes.tables import Tables


class Solution:
    """Routes of the least latency or interval.

    Attributes:
        least: latency or interval of the best route by set of workers and group of the last leg;
            infinite where there is none.
    """

    def __init__(
        self,
        tables: Tables,
        join: np.ufunc,
        stages: NDArray[np.float64],
        hops: NDArray[np.float64],
    ) -> None:
        self._tables, self._join, self._stages, self._hops = tables, join, stages, hops
        places, members = stages.shape[-1], tables.counts.sum(axis=1)
        # By set, group of the last leg and place. The last group is the source of the queries.
        self._best = np.full((len(members), len(hops), places), np.inf)
        self._best[0, -1, 0] = 0.0
        for legs in range(1, min(members.max(), places - 1) + 1):
            for group, unit in enumerate(tables.units):
                sets = np.flatnonzero((members == legs) & (tables.counts[:, group] > 0))
                arrived = join(self._best[sets - unit], hops[:, group]).min(axis=1)
                ended = join(arrived[..., np.newaxis], stages[group]).min(axis=1)
                self._best[sets, group] = ended
        self.least = join(self._best[:, :-1, -1], hops[:-1, -1, -1])

    @classmethod
    def of_latency(cls, tables: Tables, below_s: float = np.inf) -> Solution:
        """Return the routes of the least latency among those with an interval below a bound."""
        return cls(
            tables,
            np.add,
            np.where(tables.stages < below_s, tables.stages, np.inf),
            np.where(tables.intervals < below_s, tables.hops, np.inf),
        )

    @classmethod
    def of_interval(cls, tables: Tables) -> Solution:
        """Return the routes of the least interval."""
        return cls(tables, np.maximum, tables.stages, tables.intervals)

    def best(self, legs: int | None = None) -> Route | None:
        """Return the best route over any set of workers, of those with the fewest legs.

        Args:
            legs: the number of legs that it must have.
        """
        least = self.least.min(axis=1)
        members = self._tables.counts.sum(axis=1)
        if legs is not None:
            least = np.where(members == legs, least, np.inf)
        chosen = np.lexsort((members, least))[0]
        return self.route(chosen) if least[chosen] < np.inf else None

    def route(self, chosen: int) -> Route:
        """Return the best route over a set of workers that has one."""
        group, last = int(self.least[chosen].argmin()), self._stages.shape[-1] - 1
        backwards = []
        while last:
            chosen -= self._tables.units[group]
            arrived = self._join(self._best[chosen], self._hops[:, group])
            ended = self._join(arrived, self._stages[group, :, last])
            before, first = map(int, np.unravel_index(ended.argmin(), ended.shape))
            backwards.append((group, first, last))
            group, last = before, first
        members = [iter(workers) for workers in self._tables.groups]
        return Route(
            tuple(Leg(next(members[group]), first, last) for group, first, last in backwards[::-1])
        )
