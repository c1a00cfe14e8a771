"""Which requests run concurrently with the work of a worker, and which wait for it."""

from __future__ import annotations

from typing import Final

from synergai.core.scheduling.state.estimate import BRIEF_S, Estimate
from synergai.core.scheduling.state.jobs import Lease, LeasePhase
from synergai.core.scheduling.state.workers import MAX_REQUESTS, WorkerRecord

BRIEF_SHARE: Final = 0.25
"""A query is brief up to `BRIEF_S`, or this share of the time of the query at a worker's head."""
MAX_BRIEF: Final = 4
"""Sessions per core that run brief queries concurrently with other work."""
MAX_BRIEF_REQUESTS: Final = 32
"""Concurrent brief requests in one session; together they also take no more than `prefetch_s`."""
MEASURED_S: Final = 0.5
"""Time that requests leave a worker to a query that is measured; then it is long, and shares."""


def may_run_concurrently(worker: WorkerRecord, estimate: Estimate) -> bool:
    """Return whether requests of this cost may run concurrently with a worker's leases at all.

    The session is loaded. Nothing is computed while the head's is being loaded, or the cores
    suffice for the threads of both, or the request is brief. A switch of the power mode comes
    with a load, so sessions of another mode have to wait. So do engines with variants: a
    request would get the one that fits next to the head, not the one that its time pays for.
    A measurement is disturbed only once its query has turned out to be long.
    A request in the session of the last of the leases follows that one.
    """
    session, head = estimate.session, worker.head
    if head is None:
        return False
    in_heads = session == head.session
    if in_heads and worker.last is not None and worker.last.session == session:
        return False  # as of most requests
    if not (worker.takes_more and worker.worker.cores and session in worker.sessions):
        return False
    ours, theirs = session.configuration, head.session.configuration
    if ours.power_mode != theirs.power_mode:
        return False
    if head.phase is LeasePhase.SETUP and head.session not in worker.sessions:
        return True
    if ours.variant or (head.estimate is None and not head.is_long_probe):
        return False
    if ours.execution_provider and ours.execution_provider == theirs.execution_provider:
        return False
    if in_heads:
        return is_brief(estimate, head)
    return is_brief(estimate, head) or ours.threads + theirs.threads <= worker.worker.cores


def runs_concurrently(worker: WorkerRecord, estimate: Estimate) -> bool:
    """Return whether a further request of this cost runs concurrently with the leases now."""
    if not may_run_concurrently(worker, estimate):
        return False
    session, head = estimate.session, worker.head
    brief = head is None or is_brief(estimate, head)
    if (others := worker.concurrent.get(session)) is not None:
        if (times := estimate.entry.batch_times) is not None:
            return len(others) < 2 * times.max_rows
        if brief:
            most, query_s = MAX_BRIEF_REQUESTS, estimate.typical_s
        else:
            most, query_s = MAX_REQUESTS, estimate.seconds(1, with_tensors=True)
        return len(others) < most and len(others) * query_s <= worker.prefetch_s
    if head is None or brief:
        return len(worker.concurrent) < MAX_BRIEF * worker.worker.cores
    long = [
        each.configuration.threads
        for each, leases in worker.concurrent.items()
        if not is_brief(next(iter(leases.values())).estimate, head)
    ]
    threads = session.configuration.threads + head.session.configuration.threads
    return not long or threads + sum(long) <= worker.worker.cores


def expected_wait_s(worker: WorkerRecord, estimate: Estimate, now: float) -> float:
    """Return the expected seconds until a worker starts a further request of this cost."""
    if not may_run_concurrently(worker, estimate):
        return worker.free_at(now) - now
    return worker.session_free_at(estimate.session, now) - now


def is_brief(estimate: Estimate | None, head: Lease) -> bool:
    """Return whether queries of this cost are brief compared with what a worker runs at its head.

    They do not wait: the operating system shares the cores among the engine hosts fairly, so that
    brief queries are answered early, and what runs at the head keeps its share.

    Their mean may be long just because they share the cores, so the median decides.
    """
    query_s = MEASURED_S if head.is_long_probe else head.step_s
    longest_s = max(BRIEF_S, BRIEF_SHARE * query_s)
    return estimate is not None and estimate.typical_s <= longest_s
