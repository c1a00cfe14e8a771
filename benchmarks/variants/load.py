"""What the rules of others observe in a simulation."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from synergai.core.scheduling.variants.demand import ArrivalRate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.domain import EngineName, WorkerId


class Load:
    """Demand for the engines, and CPU use of the workers.

    Args:
        workers: how many workers have each engine.
        deadline_s: the time that each request has.
        by_throughput: the profile is that of the throughput, not another measure of the cost.
    """

    def __init__(
        self, workers: Mapping[EngineName, int], deadline_s: float, *, by_throughput: bool = True
    ) -> None:
        self.workers = workers
        self.deadline_s = deadline_s
        self.by_throughput = by_throughput
        self._arrivals = {engine: ArrivalRate() for engine in workers}
        self._busy_s: dict[WorkerId, dict[int, float]] = defaultdict(lambda: defaultdict(float))

    def arrived(self, engine: EngineName, now: float) -> None:
        """Count a request."""
        self._arrivals[engine].add(now)

    def arrivals_per_s(self, engine: EngineName, now: float) -> float:
        """Return how many requests of the engine arrived within the last second."""
        return self._arrivals[engine].per_s(now)

    def runs(self, worker: WorkerId, began: float, ends: float) -> None:
        """Count the time of a query, in the seconds in which it runs."""
        while began < ends:
            until = min(math.floor(began) + 1.0, ends)
            self._busy_s[worker][math.floor(began)] += until - began
            began = until

    def cpu(self, worker: WorkerId, now: float, seconds: int) -> list[float]:
        """Return the CPU use of a worker in each of the last seconds."""
        last = math.floor(now)
        return [self._busy_s[worker].get(last - n, 0.0) for n in range(1, seconds + 1)]
