"""Rates at which requests arrive, and at which jobs need queries answered, of an engine."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.core.scheduling.state.jobs import JobRecord

JOB_SHARE: Final = 0.7
"""Share of a job's remaining time in which it is to be completed."""
_INTERVAL_S: Final = 2e-5
"""Time between two counts, for each job that they have to look at."""
WINDOW_S: Final = 1.0
"""Time over which arrivals are counted."""
_MAX_COUNTED: Final = 8192
"""Arrivals that are remembered at most."""
_MEAN_S: Final = 5.0
"""Time constant of the mean rate, which varies less by chance than the count of one second."""
_KNOWN_AFTER_S: Final = 2.0
"""Time after the first arrival from which on the mean counts."""
_DEVIATIONS: Final = 2.0
"""Standard deviations of a Poisson process within which the last second may be chance."""


class JobDemand:
    """Queries per second that the waiting and running jobs of an engine need.

    A count looks at every job. With many jobs it is therefore repeated less often, so that the
    cost of an event does not grow with their number.
    """

    def __init__(self) -> None:
        self._jobs: dict[int, JobRecord] = {}
        self._per_s = 0.0
        self._counted_at = -math.inf

    def add(self, job: JobRecord) -> None:
        """Count a job from now on. Idempotent."""
        self._jobs[job.sequence] = job

    def remove(self, job: JobRecord) -> None:
        """Count a job no longer; do nothing if it was not counted."""
        self._jobs.pop(job.sequence, None)

    def per_s(self, now: float, horizon_s: float, sample_cost: float = 1.0) -> float:
        """Return the rate, if each job has at least `horizon_s` to complete.

        `sample_cost` is how much a query without tensors counts, compared with one that has them.
        """
        if not self._jobs:
            return 0.0
        if now - self._counted_at >= _INTERVAL_S * len(self._jobs):
            self._counted_at = now
            self._per_s = sum(
                job.remaining
                * (1.0 if job.job.with_tensors else sample_cost)
                / (JOB_SHARE * max(job.job.deadline - now, horizon_s))
                for job in self._jobs.values()
            )
        return self._per_s


class ArrivalRate:
    """Number of arrivals within the last second, per second, and their mean rate."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=_MAX_COUNTED)
        self._first = math.inf
        self._last = 0.0
        self._mean = 0.0
        self._changed_at: float | None = None
        self._rises = False

    def add(self, now: float) -> None:
        """Count an arrival."""
        self._at.append(now)
        if self._first > now:
            self._first = now
        self._mean = self._mean * math.exp((self._last - now) / _MEAN_S) + 1.0 / _MEAN_S
        self._last = now

    def observe(self, now: float) -> float:
        """Detect a change of the rate; return the rate to plan with.

        That is the mean rate, or the rate of the last second while the two differ by more than
        chance. After a change that lasts, the mean begins again.
        """
        lately = self.per_s(now)
        if now - self._first < _KNOWN_AFTER_S:
            return lately
        seen = 1.0 - math.exp((self._first - now) / _MEAN_S)
        mean = self._mean * math.exp((self._last - now) / _MEAN_S) / seen
        if abs(lately - mean) <= _DEVIATIONS * math.sqrt(max(mean, 1.0)):
            self._changed_at = None
            return mean
        rises = lately > mean
        if self._changed_at is None or rises is not self._rises:
            self._changed_at, self._rises = now, rises
        elif now - self._changed_at >= WINDOW_S:  # two seconds without a common arrival
            self._restart(lately, now)
        return lately

    def _restart(self, lately: float, now: float) -> None:
        """Let the mean be that of the last second, as if nothing had arrived before it."""
        self._first = now - WINDOW_S
        self._last = now
        self._mean = lately * -math.expm1(-WINDOW_S / _MEAN_S)
        self._changed_at = None

    def per_s(self, now: float) -> float:
        """Return the rate; of more arrivals than are remembered, that of the last ones."""
        at = self._at
        if len(at) == _MAX_COUNTED and at[0] > now - WINDOW_S:
            return _MAX_COUNTED / max(now - at[0], 1e-6)
        while at and at[0] <= now - WINDOW_S:
            at.popleft()
        return len(at) / WINDOW_S
