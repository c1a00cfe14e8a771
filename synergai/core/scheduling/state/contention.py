"""Contention: workers of one machine slow each other down, by what they run at the same time.

The places of a machine are workers with cores of their own, but they share its caches, its memory
bandwidth and its clock. How much an engine is slowed down by another one is learned from the
progress that is reported while both run; the pace of a worker, from the progress while nothing else
runs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, WorkerClass

_PRIOR_S: Final = 0.1
"""Time that the assumption of no contention counts for."""
_HORIZON_S: Final = 10.0
"""Time over which a slow-down is learned."""
MOST: Final = 8.0
"""Largest slow-down that is believed."""
MOST_PAIRS: Final = 4096
"""Pairs that are remembered, those that were seen last: engines come and go with their versions."""


class Contention:
    """Slow-downs of pairs of engines by worker class."""

    def __init__(self) -> None:
        # Of an engine by another one: the factor, and the seconds that it rests on.
        self._pairs: dict[tuple[WorkerClass, EngineName, EngineName], tuple[float, float]] = {}

    def slowdown(
        self, worker: WorkerRecord, engine: EngineName, company: Iterable[EngineName]
    ) -> float:
        """Return how many times as long an engine takes on a worker while other engines run."""
        worker_class = worker.worker.worker_class
        pairs = (self._pairs.get((worker_class, engine, other)) for other in company)
        return math.prod(pair[0] for pair in pairs if pair is not None)

    def observe(
        self,
        worker: WorkerRecord,
        engine: EngineName,
        company: tuple[EngineName, ...],
        seconds: float,
        alone_s: float,
    ) -> None:
        """Learn from queries that took `seconds` in company, and would take `alone_s` alone.

        Several other engines are taken to contribute equally to what differs from the slow-down
        that was expected.
        """
        expected = self.slowdown(worker, engine, company)
        seen = min(max(seconds / alone_s, 1.0), MOST)
        correction = (seen / expected) ** (1 / len(company))
        for other in company:
            key = worker.worker.worker_class, engine, other
            believed, weight_s = self._pairs.pop(key, (1.0, _PRIOR_S))
            factor = believed * correction
            share = seconds / (weight_s + seconds)
            self._pairs[key] = (
                max(1.0, believed + share * (factor - believed)),
                min(weight_s + seconds, _HORIZON_S),
            )
        while len(self._pairs) > MOST_PAIRS:
            del self._pairs[next(iter(self._pairs))]
