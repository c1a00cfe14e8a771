"""Execution times observed in worker reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from synergai.scheduling.state.records import Lease


class Observation(NamedTuple):
    """Execution times of a lease, derived from one progress report.

    Attributes:
        engine_s: engine time of all its finished queries, each computed alone; 0 if unknown.
        transfer_s: additional time per query that came with its tensors; None if not measured.
    """

    engine_s: float
    transfer_s: float | None = None


def observe(lease: Lease, new: int, compute_s: float, now: float) -> Observation | None:
    """Derive execution times from a report of `new` finished queries, which `lease.done` includes.

    `compute_s` is the time inside the engine since the lease's start; 0 if unknown. None if it is
    unknown when the first query began.
    """
    if lease.job.job.with_tensors:
        return Observation(_alone_s(lease, compute_s), _transfer_s(lease, new, compute_s, now))
    began_at = _began_at(lease)
    if began_at is None or now <= began_at:
        return None
    return Observation(now - began_at)


def _began_at(lease: Lease) -> float | None:
    """Return when the first query began; None if unknown."""
    if lease.first_query_at is None and lease.assignment.setup_s == 0.0:
        return lease.head_at
    return lease.first_query_at


def _transfer_s(lease: Lease, new: int, compute_s: float, now: float) -> float | None:
    """Return the time per query outside the engine since the last report; None if unknown."""
    since = lease.reported_at if lease.reported_at is not None else _began_at(lease)
    spent_s = compute_s - lease.compute_s
    if since is None or spent_s <= 0:
        return None
    transfer_s = now - since - spent_s
    # Of a batch only its first report counts: the others become head when it is over.
    if lease.batch_size > 1 and transfer_s <= 0:
        return None
    return transfer_s / new


def _alone_s(lease: Lease, compute_s: float) -> float:
    """Return the engine time the query would have taken outside its batch, by the profile.

    0 for a job, as the inputs that arrived in time for a batch are not known.
    """
    times = lease.assignment.batch_times
    if lease.job.job.queries > 1 and times is not None:
        return 0.0
    if times is None or lease.batch_size == 1:
        return compute_s
    return compute_s * times.seconds(1) / times.seconds(min(lease.batch_size, times.max_rows))
