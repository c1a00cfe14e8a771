"""The thesis's policy: urgency order, acceptable workers, doomed jobs last (Eq. 6.1-6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.core.scheduling.lane import VECTORIZED_FROM
from synergai.core.scheduling.policy import Assign, Decision, LeastCosts, engines_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.view import Candidate, View


def acceptable(job: JobRecord, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that meet the deadline (thesis, Eq. 6.3)."""
    return [c for c in candidates if c.completes_at <= job.job.deadline]


class SynergAI:
    """Most urgent first, each job to its fastest acceptable worker that is available.

    Urgency is the slack: remaining time minus estimated time on the fastest worker. It falls at
    the same rate for all waiting jobs, so the latest start (deadline minus estimated time) gives
    the same order and is independent of time. A job past its latest start is doomed: it has no
    acceptable worker, waits behind all others, and then goes to the available worker that
    completes it soonest.
    """

    rebalances = False

    def rank(self, job: JobRecord) -> float:
        """Return the latest start: deadline - T_estimated on the fastest (Eq. 6.1, 6.2, 6.4)."""
        return job.latest_start

    def decide(self, view: View) -> list[Decision]:
        """Assign each job in urgency order to its best available worker."""
        decisions: list[Decision] = []
        available = view.available()
        if not available:
            return decisions
        bounds = (
            LeastCosts(available, view.estimator) if len(view.queue) > VECTORIZED_FROM else None
        )
        for job in view.queue.in_order(engines_of(available), view.now, bounds):
            if not available:
                break
            candidates = view.takers(job, available)
            doomed = job.rank < view.now
            if not doomed:
                candidates = acceptable(job, candidates)
            if candidates:
                best = candidates[0]
                decisions.append(Assign(job, best.worker, best.estimate, job.assignable))
                available.remove(best.worker)
        return decisions
