"""The thesis's policy: urgency order, acceptable workers, doomed jobs last (Eq. 6.1-6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policy import Candidate, Decision, Give, View
from synergai.scheduling.queue import WORTH_A_SCAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.scheduling.state import JobRecord


def acceptable(job: JobRecord, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Keep the candidates that meet the deadline (thesis, Eq. 6.3)."""
    return [c for c in candidates if c.completes_at <= job.job.deadline]


class SynergAI:
    """Most urgent first, each to its fastest acceptable worker that is available.

    Urgency is the slack, remaining minus estimated time on the fastest worker. It falls at
    the same rate for all waiting jobs, so that the latest start, deadline minus estimated
    time, gives the same order and does not change as time passes. A job whose latest start
    is over has no acceptable worker left: it waits behind all others, and is then given to
    the available worker that is soonest done with it.
    """

    rebalances = False

    def rank(self, job: JobRecord) -> float:
        """Latest start on the fastest worker: deadline - T_estimated (Eq. 6.1, 6.2, 6.4)."""
        return job.latest_start

    def decide(self, view: View) -> list[Decision]:
        """Give each job in urgency order to its next best available worker."""
        decisions: list[Decision] = []
        available = view.available()
        if not available:
            return decisions
        bounds = view.bounds(available) if len(view.queue) > WORTH_A_SCAN else None
        engines = view.queue.engines() if bounds is None else bounds
        for job in view.queue.in_order(engines, view.now, bounds):
            if not available:
                break
            candidates = view.candidates(job, available)
            doomed = job.rank < view.now
            if not doomed:
                candidates = acceptable(job, candidates)
            if candidates:
                best = candidates[0]
                decisions.append(Give(job, best.worker, best.estimate, job.leasable))
                available.remove(best.worker)
        return decisions
