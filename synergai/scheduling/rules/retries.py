"""Retries: a job whose assignments keep failing waits longer and longer before the next one.

A fault after progress is a new one, not a repetition: an engine host that crashes once an hour does
not fail a job that runs for days, while a query that always crashes it does.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import AssignmentId
    from synergai.scheduling.state.records import JobRecord

FIRST_PAUSE_S: Final = 1.0
"""Pause after the second fault without progress in between; each further one doubles it."""
LONGEST_PAUSE_S: Final = 60.0


class Retries:
    """Counts the faults of jobs, and holds those that pause before their next retry.

    Attributes:
        held: heap of the jobs that pause, by the end of their pause; some may have been removed.
    """

    def __init__(self) -> None:
        self.held: list[tuple[float, int, JobRecord]] = []

    def count_fault(self, job: JobRecord, assignment: AssignmentId) -> bool:
        """Count a failed assignment; return False if it belongs to the fault before.

        The job's faults start from 1 if it has made progress. What was in flight at a fault shares
        it: an engine host that dies takes all assignments with it that wait there.
        """
        if assignment <= job.fault_covers:
            return False
        job.faults = job.faults + 1 if job.done == job.done_at_fault else 1
        job.done_at_fault = job.done
        job.fault_covers = max(job.leases, default=assignment)
        return True

    def hold(self, job: JobRecord, now: float) -> bool:
        """Let a job pause after its last fault; return whether it has to.

        The first retry comes at once, as the fault may have been another job's or the host's.
        Requests never pause: their clients wait.
        """
        if job.is_request or job.faults < 2:
            return False
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(job.faults - 2, 60), LONGEST_PAUSE_S)
        job.held_until = now + pause_s
        heapq.heappush(self.held, (job.held_until, job.sequence, job))
        return True

    def due(self, now: float) -> Iterator[JobRecord]:
        """Yield the jobs whose pause is over."""
        while self.held and self.held[0][0] <= now:
            until, _, job = heapq.heappop(self.held)
            if not job.removed and job.held_until == until:
                job.held_until = None
                yield job

    def next_due(self) -> float:
        """Return when the next pause ends; infinite if none does."""
        while self.held and self.held[0][2].removed:
            heapq.heappop(self.held)
        return self.held[0][0] if self.held else math.inf
