"""Earliest deadline first, each job to the available worker that is soonest done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policies.fifo import Fifo

if TYPE_CHECKING:
    from synergai.scheduling.state import JobRecord


class EarliestDeadlineFirst(Fifo):
    """As first come, first served, but in the order of the deadlines."""

    def rank(self, job: JobRecord) -> float:
        """The deadline."""
        return job.job.deadline
