"""First come, first served, each job to the available worker that completes it soonest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.policy import Assign, Decision, engines_of

if TYPE_CHECKING:
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.view import View


class Fifo:
    """Jobs in order of arrival, each to the available worker that completes it soonest."""

    rebalances = False

    def rank(self, job: JobRecord) -> float:
        """Return the arrival time."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Assign the oldest jobs while workers are available."""
        decisions: list[Decision] = []
        available = view.available()
        if not available:
            return decisions
        for job in view.queue.in_order(engines_of(available)):
            if not available:
                break
            candidates = view.takers(job, available)
            if candidates:
                best = candidates[0]
                decisions.append(Assign(job, best.worker, best.estimate, job.assignable))
                available.remove(best.worker)
        return decisions
