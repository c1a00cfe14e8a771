"""Earliest deadline first, each job to the available worker that completes it soonest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.fifo import Fifo

if TYPE_CHECKING:
    from synergai.scheduling.state import JobRecord


class EarliestDeadlineFirst(Fifo):
    """First come, first served, but in order of deadlines."""

    def rank(self, job: JobRecord) -> float:
        """Return the deadline."""
        return job.job.deadline
