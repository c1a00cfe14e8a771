"""Pace observations from worker reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.state import Lease, WorkerRecord


def learn(
    estimator: Estimator,
    worker: WorkerRecord,
    lease: Lease,
    estimate: Estimate,
    *,
    new: int,
    compute_s: float,
    now: float,
    prior_s: float,
) -> None:
    """Update the estimator from the `new` queries that a lease reported.

    Args:
        estimator: the estimator to update.
        worker: the reporting worker.
        lease: the reporting lease; its `done` already includes the new queries.
        estimate: what was expected of the lease.
        new: number of newly finished queries, at least 1.
        compute_s: time inside the engine since the lease's start; 0 if unknown.
        now: when the report arrived.
        prior_s: weight of the profile in a job's pace, as seconds of observation.
    """
    began = lease.first_query_at
    if began is None and lease.assignment.setup_s == 0.0:
        began = lease.head_at
    entry = estimate.entry
    if lease.job.job.with_tensors:
        since = lease.reported_at if lease.reported_at is not None else began
        spent_s = compute_s - lease.compute_s
        # Of a batch only its first report counts: the others become head when it is over.
        is_first = lease.batch_size == 1 or (since is not None and now - since > spent_s)
        transfer_s = None
        if since is not None and spent_s > 0 and is_first:
            transfer_s = (now - since - spent_s) / new
        estimator.observe_queries(lease, worker, _alone_s(lease, compute_s), transfer_s)
    elif began is not None and now > began:
        elapsed_s = now - began
        estimator.observe_queries(lease, worker, elapsed_s)
        by_profile_s = lease.done / entry.qps
        lease.job.paces[worker.id] = (elapsed_s + prior_s) / (by_profile_s + prior_s)
    lease.compute_s = max(lease.compute_s, compute_s)


def _alone_s(lease: Lease, compute_s: float) -> float:
    """Return the engine time the query would have taken outside its batch, by the profile."""
    times = lease.assignment.batch_times
    if times is None or lease.batch_size == 1:
        return compute_s
    return compute_s * times.seconds(1) / times.seconds(min(lease.batch_size, times.max_rows))
