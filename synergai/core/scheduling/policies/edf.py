"""Earliest deadline first among the jobs that can be in time."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.policies.synergai import SynergAI
from synergai.core.scheduling.policy import Assign, Decision, engines_of

if TYPE_CHECKING:
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.view import View

MAX_DOOMED: Final = 64
"""Waiting jobs among which late ones are sought for the workers that are left."""


class EarliestDeadlineFirst(SynergAI):
    """Earliest deadline first, each job to its fastest acceptable worker that is available.

    A job that is late on every worker runs where it is completed soonest, on a worker that no
    other job can use in time.
    """

    def rank(self, job: JobRecord) -> float:
        """Return the deadline."""
        return job.job.deadline

    def decide(self, view: View) -> list[Decision]:
        """Assign the jobs that can be in time, then those that cannot."""
        available = view.available()
        if not available:
            return []
        decisions = super().decide(view)
        assigned = [each for each in decisions if isinstance(each, Assign)]
        jobs = {each.job for each in assigned}
        for each in assigned:
            available.remove(each.worker)
        for job in islice(view.queue.in_order(engines_of(available)), MAX_DOOMED):
            if not available:
                break
            if job.latest_start >= view.now or job in jobs:
                continue
            if candidates := view.takers(job, available):
                best = candidates[0]
                decisions.append(Assign(job, best.worker, best.estimate, job.assignable))
                available.remove(best.worker)
        return decisions
