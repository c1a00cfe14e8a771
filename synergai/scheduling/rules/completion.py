"""Expected completion of a job, from its assignments and its policy's plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from synergai.scheduling.policies.water_filling import water_fill

if TYPE_CHECKING:
    from synergai.domain import WorkerId
    from synergai.scheduling.policy import View
    from synergai.scheduling.state.records import JobRecord


def expected_completion(job: JobRecord, view: View) -> float | None:
    """Return when `job` is expected to complete, in monotonic seconds; None if unknown.

    Queries in flight end with the work of their workers. Queries that are not dispatched, as
    their tensors have not arrived or other work runs first, follow the policy's plan if it has
    one. Otherwise they run next on the workers that run the job, or on the one that would
    complete them soonest.
    """
    left = job.pending.total
    until = view.now
    running: dict[WorkerId, tuple[float, float]] = {}
    for lease in job.leases.values():
        if lease.estimate is None:
            return None
        if lease.stopping:
            left += lease.remaining
            continue
        worker = view.workers[lease.assignment.worker_id]
        ends_at = worker.ends_at(lease, view.now)
        running[worker.id] = ends_at, 1 / view.lease_query_s(lease, worker, lease.estimate)
        until = max(until, ends_at)
    if left and job.planned_at is not None and job.planned_at > view.now:
        until = max(until, job.planned_at)
    elif left and running:
        ready = sorted((at, number) for number, (at, _) in enumerate(running.values()))
        until = max(until, water_fill(left, ready, [rate for _, rate in running.values()]))
    elif left:
        until = max(until, _soonest(job, left, view))
    return until if math.isfinite(until) else None


def _soonest(job: JobRecord, queries: int, view: View) -> float:
    """Return when the best worker would complete `queries` of the job as its next work."""
    candidates = view.candidates(job, view.serving(job.job.engine))
    return min(
        (
            worker.free_at(view.now)
            + view.setup_s(job, worker, estimate)
            + queries * view.per_query_s(job, worker, estimate)
            for _, worker, estimate in candidates
        ),
        default=math.inf,
    )
