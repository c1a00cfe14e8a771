"""Rate at which the jobs of an engine with variants need queries answered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.scheduling.state.records import JobRecord

JOB_SHARE: Final = 0.7
"""Share of a job's remaining time in which it is to be completed."""
_INTERVAL_S: Final = 2e-5
"""Time between two counts, for each job that they have to look at."""


class JobDemand:
    """Queries per second that the waiting and running jobs of an engine need.

    A count looks at every job. With many jobs it is therefore repeated less often, so that the
    cost of an event does not grow with their number.
    """

    __slots__ = ("_counted_at", "_jobs", "_per_s")

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
