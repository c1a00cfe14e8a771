"""Interleaving: requests with a waiting client run between two queries of a running job.

A job may occupy a worker for hours, but it can be stopped after any query and resumed. A request
that finds no free worker therefore stops the job, runs next, and the rest of the job is assigned
again behind it. Three limits protect the job: its priority must not be higher, it must still meet
its deadline, and it advances after a few requests at the latest.

A long query, of a job or of a request, is aborted if a request, or a job that has just arrived, can
meet its deadline only so, or for any request if it has just begun. Its work is lost, so a worker
aborts no more than one query in advance, and in the long run loses a small share of the time of
long queries (see `LOST_SHARE`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.core.scheduling.policy import engines_of
from synergai.core.scheduling.rules.concurrency import expected_wait_s, may_run_concurrently
from synergai.core.scheduling.state.estimate import LONG_S, Estimate
from synergai.core.scheduling.state.jobs import JobRecord, Lease, LeasePhase
from synergai.core.scheduling.state.workers import ABORT_S, WorkerRecord
from synergai.core.scheduling.view import SIMILAR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.probes import Probes
    from synergai.domain import EngineName, Job

MAX_INTERRUPTIONS: Final = 8
"""Requests that run in a row before the interrupted job runs at least one query.

More of them run if together they are shorter than this query.
"""
MAX_WORKERS: Final = 6
"""Workers that are looked at to find out how long waiting requests take."""
JUST_BEGUN: Final = 0.1
"""A query is aborted for any request if that costs this share of what is left of it."""
QUEUED_SHARE: Final = 0.9
"""Share of the time to a deadline that the wait in the queue may use, which is known less well."""
MARGIN: Final = 0.05
"""Part of a job's remaining time that interruptions leave as a reserve for its deadline."""

LOST_SHARE: Final = 0.05
"""Share of the time of long queries that may be lost to aborts, in the long run."""
PROBE_S: Final = 10.0
"""Time to allow a request whose engine is unprofiled, with loading it."""


class Interruption(NamedTuple):
    """A request, the worker that runs it next, and the job assignments that yield to it.

    The estimate is None if its engine is unprofiled there.

    Attributes:
        recalled: long requests that were sent ahead and wait there; they cost nothing.
    """

    request: JobRecord
    worker: WorkerRecord
    estimate: Estimate | None
    yielding: tuple[Lease, ...]
    recalled: tuple[Lease, ...] = ()
    aborted: Lease | None = None


class _Way(NamedTuple):
    """When a worker begins a request, if it recalls and aborts what is in the way."""

    wait_s: float
    recalled: tuple[Lease, ...] = ()
    aborted: Lease | None = None


class _Aborted(NamedTuple):
    """A query to abort, and how much sooner its worker then runs a request."""

    lease: Lease
    saved_s: float


@dataclass(slots=True)
class _History:
    """Interruptions of a worker.

    Attributes:
        requests_s: expected duration of these requests.
        lost_s: work on aborted queries that later ones have not made up for, and what delayed them
            without need.
        unabortable: engines whose queries went on although they were told to abort.
    """

    requests: int = 0
    requests_s: float = 0.0
    interrupted_at: float = -math.inf
    lost_s: float = 0.0
    unabortable: set[EngineName] = field(default_factory=set)


class Interleaver:
    """Selects which waiting request interrupts which worker's job."""

    def __init__(self, state: State, probes: Probes) -> None:
        self._state = state
        self._probes = probes
        self._histories: defaultdict[int, _History] = defaultdict(_History)
        state.forget_worker.append(self._forget_worker)

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self._histories.pop(worker.index, None)

    def interrupted(self, interruption: Interruption) -> None:
        """Record an interruption that is executed now."""
        request, worker, estimate, yielding, _, aborted = interruption
        history, now = self._histories[worker.index], self._state.now
        request_s = 0.0 if estimate is None else estimate.seconds(1, with_tensors=True)
        if aborted is not None:
            history.lost_s += aborted.query_spent_s(now)
            if request.job.deadline == math.inf:  # or such requests would keep it from beginning
                history.lost_s += ABORT_S + request_s
        if yielding:
            history.requests += 1
            history.requests_s += request_s
            history.interrupted_at = now

    def progressed(self, lease: Lease, new: int) -> None:
        """Record that a worker has completed `new` queries of a lease that is no short request."""
        query_s, is_request = lease.assignment.query_s, lease.job.is_request
        if lease.estimate is None:
            return
        history = self._histories[self._state.fleet.workers[lease.assignment.worker_id].index]
        if not is_request:
            history.requests, history.requests_s = 0, 0.0
        if query_s >= LONG_S:
            history.lost_s = max(0.0, history.lost_s - LOST_SHARE * new * query_s)
            now = self._state.now
            if lease.aborted_at is not None and now - lease.aborted_at > 5 * ABORT_S:
                history.unabortable.add(lease.assignment.engine)

    def in_the_way(self, job: JobRecord) -> list[Lease]:
        """Return what to abort now so that a job meets its deadline, and note the loss.

        The job is next on that worker: the policy has stopped what runs there, or it is the last
        query of its assignment.
        """
        now = self._state.now
        for worker in self._state.serving(job.job.engine)[:MAX_WORKERS]:
            head = worker.head
            if head is None or not head.runs_long_query():
                continue
            if not head.stopping and head.remaining > head.rows:
                continue
            recalled = _sent_ahead(worker, job.job)
            stays = [each for each in worker.leases.values() if each not in (head, *recalled)]
            cost_s = sum([lease.expected_s for lease in stays])
            if job.pending.total:
                estimate = self._state.best_estimate(job, worker)
                if estimate is None:
                    continue
                cost_s += self._state.setup_s(job, worker, estimate)
                cost_s += job.pending.total * self._state.per_query_s(job, worker, estimate)
            aborted = self._aborted(job, worker, head.query_left_s(now), cost_s)
            if aborted is not None:
                self._histories[worker.index].lost_s += head.query_spent_s(now)
                return [head, *recalled]
        return []

    def before_policy(self) -> Iterator[Interruption]:
        """Yield interruptions for the requests that no available worker serves.

        The caller executes each one before it asks for the next.
        """
        while self._state.queue.requests and self._state.fleet.interruptible:
            available = self._state.available()
            found = self._first(
                request
                for request in self._state.queue.first_requests(self._state.now)
                if not any(request.job.engine in worker.engines for worker in available)
            )
            if found is None:
                return
            yield found

    def after_policy(self) -> Iterator[Interruption]:
        """Yield interruptions for the requests that the policy left waiting."""
        while self._state.queue.requests:
            available = {worker.index for worker in self._state.available()}
            found = self._first(self._state.queue.first_requests(self._state.now), available)
            if found is None:
                return
            yield found

    def _first(
        self, requests: Iterable[JobRecord], available: Collection[int] = ()
    ) -> Interruption | None:
        """Return the first request that is in time anywhere, where it is expected to end first.

        Workers that would end it about equally soon take turns, so that requests delay all jobs
        alike. A worker on which its engine is unprofiled is the last resort. A request that is
        late everywhere runs if no other one is on its way there.
        """
        for request in requests:
            left_s = request.job.deadline - self._state.now
            known: list[tuple[float, Interruption]] = []
            unprofiled: Interruption | None = None
            for wait_s, option in self._options(request, available):
                if option.estimate is not None:
                    answer_s = wait_s + option.estimate.seconds(1, with_tensors=True)
                    is_late = request.latest_start < self._state.now and not option.worker.requests
                    if answer_s <= left_s or is_late:
                        known.append((answer_s, option))
                elif unprofiled is None:
                    unprofiled = option
            if known:
                limit_s = SIMILAR * min(answer_s for answer_s, _ in known)
                similar = [option for answer_s, option in known if answer_s <= limit_s]
                return min(similar, key=self._last_resort)
            if unprofiled is not None:
                return unprofiled
        return None

    def _last_resort(self, option: Interruption) -> tuple[bool, float]:
        """Order options: idle workers first, then those whose jobs were interrupted longest ago."""
        return bool(option.yielding), self._histories[option.worker.index].interrupted_at

    def _options(
        self, request: JobRecord, available: Collection[int]
    ) -> Iterator[tuple[float, Interruption]]:
        """Yield where a request may run next, and the seconds until that worker starts it."""
        for worker in self._state.serving(request.job.engine):
            estimate = next(iter(self._state.estimator.for_job(request, worker)), None)
            if estimate is None and self._state.estimator.to_measure(request, worker) is None:
                continue  # no variant on it may be used for the request now
            cost_s = PROBE_S if estimate is None else estimate.seconds(1, with_tensors=True)
            if (
                estimate is not None
                and worker.index in available
                and self._state.takes(worker, request, estimate)
            ):
                wait_s = worker.free_at(self._state.now) - self._state.now
                yield wait_s, Interruption(request, worker, estimate, ())
            elif self._may_interrupt(worker, request, estimate, cost_s):
                yielding = tuple(le for le in worker.leases.values() if not le.job.is_request)
                way = self._way(request, worker, worker.request_wait_s(self._state.now), cost_s)
                yield way.wait_s, Interruption(request, worker, estimate, yielding, *way[1:])
            elif worker.requests and worker.requests == len(worker.leases):
                wait_s = worker.free_at(self._state.now) - self._state.now
                way = self._way(request, worker, wait_s, cost_s)
                if way.recalled or way.aborted is not None:
                    yield way.wait_s, Interruption(request, worker, estimate, (), *way[1:])

    def expected_answer_s(self, request: JobRecord, *, interruptible: bool) -> float | None:
        """Return the seconds after which some worker would answer a new request.

        The least of all workers' remaining work and query time, behind the requests that wait ahead
        of it. Setup is left out: a request is worth the attempt to load its engine. On an idle
        worker, it is the profiled time if that is less: an attempt corrects what was observed under
        a disturbance. None if a worker's remaining work or the engine's speed is unknown.
        """
        now = self._state.now
        idle_s, soonest_s, overtakes = math.inf, math.inf, False
        workers: list[WorkerRecord] = []
        for worker in self._state.serving(request.job.engine):
            if worker.withdrawn:
                continue
            estimate = self._state.estimator.estimate(request.job.engine, worker)
            if estimate is None:
                return None
            if not worker.leases and estimate.session not in worker.concurrent:
                idle_s = min(idle_s, estimate.alone_s)
                continue
            cost_s = estimate.per_query_s + estimate.transfer_s
            workers.append(worker)
            yields = interruptible and len(worker.leases) > worker.requests
            concurrent = may_run_concurrently(worker, estimate)
            waits = False
            if concurrent:
                yields = False
                wait_s = expected_wait_s(worker, estimate, now)
            elif yields and self._jobs_may_yield(worker, request.job.priority, cost_s):
                wait_s = worker.request_wait_s(self._state.now)
            else:
                yields = interruptible and len(worker.leases) == worker.requests
                free_at = max(worker.free_at(now), worker.session_free_at(estimate.session, now))
                wait_s = free_at - now
                waits = True
            if not math.isfinite(wait_s):
                return None
            if yields and (way := self._way(request, worker, wait_s, cost_s)).wait_s < wait_s:
                wait_s = way.wait_s
                waits = False
            if wait_s + cost_s < soonest_s:
                soonest_s, overtakes = wait_s + cost_s, not waits
        if workers and self._state.queue.requests:
            # A request that interrupts other work overtakes what waits for other engines.
            engines = {request.job.engine} if overtakes else engines_of(workers)
            soonest_s += self._queued_s(request, engines, workers) / QUEUED_SHARE
        expected_s = min(idle_s, soonest_s)
        return expected_s if math.isfinite(expected_s) else None

    def least_answer_s(self, engine: EngineName) -> float:
        """Return the seconds in which the fastest worker answers a request if all are idle."""
        times = [
            estimate.alone_s
            for worker in self._state.serving(engine)
            if (estimate := self._state.estimator.estimate(engine, worker)) is not None
        ]
        return min(times, default=0.0)

    def _queued_s(
        self,
        request: JobRecord,
        engines: Collection[EngineName],
        workers: Sequence[WorkerRecord],
    ) -> float:
        """Return how long workers take for the requests of some engines ahead of another one."""
        busy_s = 0.0
        for engine, count in self._state.queue.requests_ahead(request, engines):
            costs = [
                estimate.capacity_s(with_tensors=True)
                for worker in workers[:MAX_WORKERS]
                if engine in worker.engines
                and (estimate := self._state.estimator.estimate(engine, worker)) is not None
            ]
            query_s = min(costs, default=0.0)
            if query_s < LONG_S or engine == request.job.engine:  # others may be aborted
                busy_s += count * query_s
        return busy_s / len(workers)

    def _way(self, request: JobRecord, worker: WorkerRecord, wait_s: float, cost_s: float) -> _Way:
        """Return how a worker begins a request soon enough that would wait for `wait_s`."""
        left_s = request.job.deadline - self._state.now - cost_s
        recalled = _sent_ahead(worker, request.job) if wait_s > left_s else ()
        sooner_s = wait_s - sum([lease.expected_s for lease in recalled])
        aborted = self._aborted(request, worker, sooner_s, cost_s)
        if aborted is not None:
            return _Way(sooner_s - aborted.saved_s, recalled, aborted.lease)
        return _Way(wait_s) if sooner_s > left_s else _Way(sooner_s, recalled)

    def _aborted(
        self, request: JobRecord, worker: WorkerRecord, wait_s: float, cost_s: float
    ) -> _Aborted | None:
        """Return the query to abort for a request, which waits for `wait_s` otherwise."""
        head, now = worker.head, self._state.now
        if head is None or head.estimate is None or head.aborted_at is not None:
            return None
        query_s, history = head.assignment.query_s, self._histories[worker.index]
        if query_s < LONG_S or worker.groups[0].most > 1 or head.job.removed:
            return None
        if head.assignment.engine in history.unabortable or (
            head.phase is LeasePhase.SETUP and head.assignment.setup_s > 0.0
        ):
            return None
        spent_s, left_s = head.query_spent_s(now), head.query_left_s(now)
        saved_s = min(left_s, wait_s) - ABORT_S
        if saved_s <= 0.0 or history.lost_s + spent_s > query_s:
            return None
        deadline = request.job.deadline
        answered_at = now + wait_s + cost_s
        if deadline < math.inf:
            if not answered_at - saved_s <= deadline < answered_at:
                return None
        elif spent_s + cost_s > JUST_BEGUN * left_s:
            return None
        others = head.remaining + head.job.pending.total - 1
        ends_at = now + left_s + others * query_s
        lost_s = ABORT_S + cost_s + spent_s
        if head.job.is_request:  # only one that is longer in any variant, or they would take turns
            fastest = next(iter(self._state.estimator.for_job(head.job, worker)), None)
            if fastest is None or 2.0 * cost_s > fastest.per_query_s:
                return None
        makes_late = ends_at <= head.job.job.deadline < ends_at + lost_s
        if makes_late or head.job.job.priority > request.job.priority:
            return None
        return _Aborted(head, saved_s)

    def _may_interrupt(
        self, worker: WorkerRecord, request: JobRecord, estimate: Estimate | None, cost_s: float
    ) -> bool:
        if worker.index not in self._state.fleet.interruptible:
            return False
        is_long = estimate is not None and cost_s >= LONG_S
        if is_long and any(lease.is_long_request for lease in worker.leases.values()):
            return False  # so that few others wait behind long requests
        if estimate is None and self._probes.is_in_flight(
            request.job.engine, worker.worker.worker_class
        ):
            return False
        history = self._histories[worker.index]
        if history.requests >= MAX_INTERRUPTIONS:
            job_query_s = max(
                [lease.step_s for lease in worker.leases.values() if not lease.job.is_request]
            )
            if history.requests_s >= job_query_s:
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
        completes_at = self._state.now + remaining_s
        if completes_at > deadline:
            return True
        return completes_at + delay_s + MARGIN * remaining_s <= deadline


def _sent_ahead(worker: WorkerRecord, urgent: Job) -> tuple[Lease, ...]:
    """Return the long requests that wait behind other work of a worker, and are less urgent."""
    return tuple(
        lease
        for lease in worker.leases.values()
        if not lease.is_head
        and lease.is_long_request
        and lease.job.job.deadline > urgent.deadline  # so that no two recall each other
        and lease.job.job.priority <= urgent.priority
    )
