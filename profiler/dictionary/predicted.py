"""Predicted times of an engine on a worker class that has no profile of it.

An engine is as much slower than another one on every class, and a class as much slower than another
one for every engine, as far as that goes: the logarithm of a time is a part of the engine and a
part of the class. The part of a class that has no profile at all is the mean of the others.
"""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry


class PredictedTimes:
    """Predicts times from those of other engines and classes, in their fastest configurations."""

    def __init__(self, entries: Iterable[ProfileEntry]) -> None:
        self._log_s: dict[EngineName, dict[WorkerClass, float]] = {}
        for entry in entries:
            times = self._log_s.setdefault(entry.engine, {})
            log_s = -math.log(entry.planned_qps)
            times[entry.worker_class] = min(log_s, times.get(entry.worker_class, log_s))

    def seconds(self, engine: EngineName, worker_class: WorkerClass) -> float | None:
        """Return the time of a query; None if no other class has a profile of the engine.

        A profile of the engine on this class is not taken into account.
        """
        known = {c: t for c, t in self._log_s.get(engine, {}).items() if c != worker_class}
        if not known:
            return None
        slower = {each: self._slower(worker_class, each, engine) for each in known}
        compared = [known[each] + by for each, by in slower.items() if by is not None]
        return math.exp(fmean(compared or known.values()))

    def _slower(
        self, worker_class: WorkerClass, other: WorkerClass, engine: EngineName
    ) -> float | None:
        """Return by how much a class is slower than another one for the other engines."""
        gaps = [
            times[worker_class] - times[other]
            for name, times in self._log_s.items()
            if name != engine and worker_class in times and other in times
        ]
        return fmean(gaps) if gaps else None

    def median_error(self) -> float | None:
        """Return the relative error at the median, over the times that are known."""
        errors = [
            abs(predicted_s / math.exp(log_s) - 1)
            for engine, times in self._log_s.items()
            for worker_class, log_s in times.items()
            if (predicted_s := self.seconds(engine, worker_class)) is not None
        ]
        return median(errors) if errors else None
