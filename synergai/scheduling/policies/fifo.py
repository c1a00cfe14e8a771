"""The plainest policy: first come, first served, by whoever is done soonest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policy import Decision, Give, View

if TYPE_CHECKING:
    from synergai.scheduling.state import JobRecord


class Fifo:
    """Jobs in order of arrival, each to the available worker that is soonest done with it."""

    rebalances = False

    def rank(self, job: JobRecord) -> float:
        """Time of arrival."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Give the oldest jobs away while workers are available."""
        decisions: list[Decision] = []
        available = view.available()
        engines = {engine for worker in available for engine in worker.engines}
        for job in view.queue.in_order(engines):
            if not available:
                break
            candidates = view.candidates(job, available)
            if candidates:
                best = candidates[0]
                decisions.append(Give(job, best.worker, best.estimate, job.leasable))
                available.remove(best.worker)
        return decisions
