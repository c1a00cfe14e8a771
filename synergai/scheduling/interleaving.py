"""Interleaving: requests with a waiting client run between two queries of a running job.

A job may occupy a worker for hours, but it can be stopped after any query and resumed. A request
that finds no free worker therefore stops the job, runs next, and the rest of the job is assigned
again behind it. Three limits protect the job: its priority must not be higher, it must still meet
its deadline, and it advances after a few requests at the latest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.scheduling.policy import SIMILAR
from synergai.scheduling.state import Phase

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from synergai.domain import EngineName
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.policy import View
    from synergai.scheduling.probes import Probes
    from synergai.scheduling.queue import JobQueue
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord

MAX_INTERRUPTIONS: Final = 8
"""Requests that run in a row before the interrupted job runs at least one query."""
MARGIN: Final = 0.05
"""Part of a job's remaining time that interruptions leave as a reserve for its deadline."""

PROBE_S: Final = 10.0
"""Time to allow a request whose engine is unprofiled, with loading it."""


class Interruption(NamedTuple):
    """A request, the worker that runs it next, and the job assignments that yield to it.

    Attributes:
        estimate: the request's cost; None if its engine is unprofiled there.
    """

    request: JobRecord
    worker: WorkerRecord
    estimate: Estimate | None
    yielding: tuple[Lease, ...]


class Interleaver:
    """Selects which waiting request interrupts which worker's job."""

    def __init__(
        self, queue: JobQueue, fleet: Fleet, view: View, estimator: Estimator, probes: Probes
    ) -> None:
        self._queue = queue
        self._fleet = fleet
        self._view = view
        self._estimator = estimator
        self._probes = probes

    def before_policy(self) -> Iterator[Interruption]:
        """Yield interruptions for the requests that no available worker serves.

        The caller executes each one before it asks for the next.
        """
        while self._queue.requests and self._fleet.interruptible:
            available = self._view.available()
            found = self._first(
                request
                for request in self._queue.first_requests()
                if not any(request.job.engine in worker.engines for worker in available)
            )
            if found is None:
                return
            yield found

    def after_policy(self) -> Iterator[Interruption]:
        """Yield interruptions for the requests that the policy left waiting.

        It may have given the available workers to jobs, or hold a request for another worker.
        """
        while self._queue.requests:
            available = {worker.index for worker in self._view.available()}
            found = self._first(self._queue.first_requests(), available)
            if found is None:
                return
            yield found

    def _first(
        self, requests: Iterable[JobRecord], available: Collection[int] = ()
    ) -> Interruption | None:
        """Return the first request that fits anywhere, where it is expected to end first.

        Workers that would end it about equally soon take turns, so that requests delay all jobs
        alike. A worker on which its engine is unprofiled is the last resort.
        """
        for request in requests:
            known: list[tuple[float, Interruption]] = []
            unprofiled: Interruption | None = None
            for wait_s, option in self._options(request, available):
                if option.estimate is not None:
                    answer_s = wait_s + option.estimate.seconds(1, with_tensors=True)
                    known.append((answer_s, option))
                elif unprofiled is None:
                    unprofiled = option
            if known:
                limit_s = SIMILAR * min(answer_s for answer_s, _ in known)
                similar = [option for answer_s, option in known if answer_s <= limit_s]
                return min(similar, key=_last_resort)
            if unprofiled is not None:
                return unprofiled
        return None

    def _options(
        self, request: JobRecord, available: Collection[int]
    ) -> Iterator[tuple[float, Interruption]]:
        """Yield where a request may run next, and the seconds until that worker turns to it."""
        for worker in self._view.serving(request.job.engine):
            estimate = next(iter(self._estimator.for_job(request, worker)), None)
            if estimate is None and self._estimator.to_measure(request, worker) is None:
                continue  # no variant on it may be used for the request now
            cost_s = PROBE_S if estimate is None else estimate.seconds(1, with_tensors=True)
            if worker.index in available and estimate is not None:
                wait_s = worker.free_at(self._view.now) - self._view.now
                yield wait_s, Interruption(request, worker, estimate, ())
            elif self._may_interrupt(worker, request, estimate, cost_s):
                yielding = tuple(le for le in worker.leases.values() if not le.job.is_request)
                wait_s = self._delay_s(worker)
                yield wait_s, Interruption(request, worker, estimate, yielding)

    def expected_answer_s(
        self, engine: EngineName, priority: int, *, interruptible: bool
    ) -> float | None:
        """Return the seconds after which some worker would answer a new request.

        Setup is left out: a request is worth the attempt to load its engine.

        Args:
            engine: the request's engine.
            priority: the request's priority.
            interruptible: whether running jobs yield to requests.

        Returns:
            The least of all workers' remaining work and query time. None if a worker is idle, or
            its work or the engine's speed is unknown.
        """
        soonest_s = math.inf
        for worker in self._view.serving(engine):
            if worker.withdrawn:
                continue
            estimate = self._estimator.estimate(engine, worker)
            if not worker.leases or estimate is None:
                return None
            cost_s = estimate.per_query_s + estimate.transfer_s
            yields = interruptible and len(worker.leases) > worker.requests
            beside = worker.may_run_beside(estimate.session, estimate.per_query_s)
            if yields and not beside and self._jobs_may_yield(worker, priority, cost_s):
                wait_s = self._delay_s(worker)
            else:
                wait_s = worker.ahead_s(estimate.session, estimate.per_query_s, self._view.now)
            if not math.isfinite(wait_s):
                return None
            soonest_s = min(soonest_s, wait_s + cost_s)
        return soonest_s if math.isfinite(soonest_s) else None

    def _may_interrupt(
        self, worker: WorkerRecord, request: JobRecord, estimate: Estimate | None, cost_s: float
    ) -> bool:
        if worker.index not in self._fleet.interruptible:
            return False
        if estimate is None and self._probes.is_in_flight(
            request.job.engine, worker.worker.worker_class
        ):
            return False
        if worker.interruptions >= MAX_INTERRUPTIONS:
            return False
        return self._jobs_may_yield(worker, request.job.priority, cost_s)

    def _jobs_may_yield(self, worker: WorkerRecord, priority: int, cost_s: float) -> bool:
        """Return whether every job on the worker may yield to a request of this cost.

        Whether it is a job's turn first does not count, which takes one query.
        """
        jobs: list[Lease] = []
        delay_s = cost_s
        for lease in worker.leases.values():
            if lease.job.is_request:
                delay_s += lease.expected_s
            else:
                jobs.append(lease)
        return all(
            lease.job.job.priority <= priority and self._stays_in_time(lease, delay_s)
            for lease in jobs
        )

    def _stays_in_time(self, lease: Lease, delay_s: float) -> bool:
        """Return whether a job that is expected to meet its deadline still does after a delay."""
        deadline = lease.job.job.deadline
        if deadline == math.inf:
            return True
        remaining = lease.remaining + lease.job.pending.total
        remaining_s = remaining * lease.assignment.query_s
        completes_at = self._view.now + remaining_s
        if completes_at > deadline:
            return True
        return completes_at + delay_s + MARGIN * remaining_s <= deadline

    def _delay_s(self, worker: WorkerRecord) -> float:
        """Return the seconds until the worker turns to a request: one query, and other requests."""
        now = self._view.now
        delay_s = 0.0
        for lease in worker.leases.values():
            if lease.head_at is None:
                # Jobs behind the head are stopped before their first query.
                delay_s += lease.expected_s if lease.job.is_request else 0.0
            elif lease.job.is_request or lease.stopping:
                delay_s += max(0.0, worker.head_ends_at - now)
            else:
                delay_s += lease.assignment.query_s
                if lease.phase is Phase.SETUP:
                    delay_s += max(0.0, lease.head_at + lease.assignment.setup_s - now)
        return delay_s


def _last_resort(option: Interruption) -> tuple[bool, float]:
    """Order options: idle workers first, then those whose jobs were interrupted longest ago."""
    return bool(option.yielding), option.worker.interrupted_at
