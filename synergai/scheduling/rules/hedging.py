"""Hedging: a late request is sent to a second worker, and the first answer wins.

Most requests that take long do so because of their worker: a pause, a page fault, another process.
A request that has been with its worker for much longer than expected is therefore copied to an idle
one ("hedged requests", Dean and Barroso, The Tail at Scale, 2013). The copy has a lease of its own,
but not the request's query: it is never queued, and charged to no tenant. The loser is stopped; a
worker that already runs it completes it, and its answer is ignored.

Copies cost work, which would make an overloaded fleet slower. They are therefore limited to a share
of the requests, and run only on a worker that no waiting job could use.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from synergai.scheduling.events import Dispatch
from synergai.scheduling.state.ranges import Ranges
from synergai.scheduling.state.records import JobRecord

if TYPE_CHECKING:
    from synergai.domain import AssignmentId, EngineName, JobId, WorkerId
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.rules.leases import Leases
    from synergai.scheduling.state.estimate import Estimate
    from synergai.scheduling.state.records import Lease, WorkerRecord

FACTOR: Final = 2.0
"""Least multiple of its estimate after which a request is late."""
MARGIN_S: Final = 0.01
"""Time in addition, for delays of the network and of the gateway itself."""
QUANTILE: Final = 0.95
"""Part of a worker's requests that are not late by its own observed times."""
STEP: Final = 0.1
"""Relative change of the observed quantile with one observation."""
BURST: Final = 10.0
"""Most copies that the share allows at once, after a time without any."""


class Hedging:
    """Requests in flight that may become late, and copies of those that did.

    Attributes:
        is_on: whether late requests are copied at all.
        sent: number of copies sent so far.
        won: number of copies that answered first.
    """

    def __init__(self, state: State, leases: Leases) -> None:
        self._state = state
        state.forget_worker.append(self._forget_worker)
        self._leases = leases
        self.is_on = state.settings.hedge_share > 0.0
        self._tokens = 0.0
        self._due: list[tuple[float, AssignmentId]] = []
        self._late: dict[AssignmentId, Lease] = {}
        self._copies: dict[JobId, Lease] = {}
        # Requests of which a copy was sent.
        self._hedged: set[JobId] = set()
        # Multiple of its estimate after which a request is late.
        self._lateness: dict[tuple[WorkerId, EngineName], float] = {}
        self.sent = 0
        self.won = 0

    def next_due(self) -> float:
        """Return when the next request in flight becomes late; infinite if there is none."""
        while self._due and self._leases.get(self._due[0][1]) is None:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else math.inf

    # --- copies -------------------------------------------------------------------------

    def place(self) -> None:
        """Watch the requests that were just dispatched, and copy late ones to idle workers.

        Workers that have an engine of a waiting job run no copies.
        """
        self._watch()
        now, queued = self._state.now, self._state.queue.engines()
        while self._due and self._due[0][0] <= now:
            _, assignment_id = heapq.heappop(self._due)
            if lease := self._leases.get(assignment_id):
                self._late[assignment_id] = lease
        if not self._late or self._tokens < 1.0:
            return
        idle = [
            worker
            for worker in self._state.fleet.available(now)
            if worker.is_idle and not worker.on_trial and worker.engines.isdisjoint(queued)
        ]
        for lease in list(self._late.values()):
            if not idle or self._tokens < 1.0:
                return
            if lease.job.removed or lease.job.job.id in self._hedged or lease.done:
                del self._late[lease.assignment.id]
            elif option := self._choose(lease, idle):
                worker, estimate = option
                del self._late[lease.assignment.id]
                self._copy(lease.job, worker, estimate)
                idle.remove(worker)

    def answered(self, lease: Lease) -> JobRecord | None:
        """Return the request that a lease has just answered, if a copy is or was involved.

        None if the other worker was first.
        """
        job = lease.job.copy_of
        if job is not None:
            if not lease.done or job.removed:
                return None
            self.won += 1
            return job
        if lease.done and lease.job.job.id in self._copies and not lease.job.removed:
            return lease.job
        return None

    def stop(self, job: JobRecord) -> None:
        """Stop the copy of a request that has left the system."""
        self._hedged.discard(job.job.id)
        if copy := self._copies.pop(job.job.id, None):
            self._leases.stop(copy, abort=True)

    def released(self, lease: Lease) -> None:
        """Forget a lease that has ended; a copy takes the place of one without an answer."""
        self._late.pop(lease.assignment.id, None)
        job = lease.job
        if job.is_request and lease.done:
            self._observe(lease)
        copy = self._copies.get(job.job.id)
        if copy is lease:
            del self._copies[job.job.id]
        elif copy is not None and job.copy_of is None and lease.remaining:
            self._promote(copy, job)

    # --- internals ----------------------------------------------------------------------

    def _forget_worker(self, worker: WorkerRecord) -> None:
        self._lateness = {key: each for key, each in self._lateness.items() if key[0] != worker.id}

    def _watch(self) -> None:
        """Note when the requests that were just dispatched become late."""
        share = self._state.settings.hedge_share
        for command in self._state.commands:
            if not isinstance(command, Dispatch):
                continue
            assignment = command.assignment
            lease = self._leases.get(assignment.id)
            if lease is None or not lease.job.is_request or lease.estimate is None:
                continue
            self._tokens = min(self._tokens + share, BURST)
            if assignment.estimate_s > 0.0 and assignment.job_id not in self._hedged:
                key = assignment.worker_id, assignment.engine
                factor = self._lateness.get(key, FACTOR)
                late_at = self._state.now + factor * assignment.estimate_s + MARGIN_S
                heapq.heappush(self._due, (late_at, assignment.id))

    def _choose(
        self, lease: Lease, idle: list[WorkerRecord]
    ) -> tuple[WorkerRecord, Estimate] | None:
        """Return the idle worker that answers soonest, if in time, and the cost there.

        A copy is not worth loading an engine or switching a power mode.
        """
        job = lease.job.job
        best: tuple[float, WorkerRecord, Estimate] | None = None
        for worker in idle:
            if job.engine not in worker.engines:
                continue
            for estimate in self._state.estimator.for_job(lease.job, worker):
                seconds = estimate.seconds(1, with_tensors=job.with_tensors)
                if estimate.session not in worker.sessions or estimate.setup_s > 0.0:
                    continue
                if self._state.now + seconds <= job.deadline and (
                    best is None or seconds < best[0]
                ):
                    best = seconds, worker, estimate
        return None if best is None else best[1:]

    def _copy(self, job: JobRecord, worker: WorkerRecord, estimate: Estimate) -> None:
        self._tokens -= 1.0
        self.sent += 1
        self._hedged.add(job.job.id)
        # Removed from the outset: it is never queued.
        copy = JobRecord(job.job, job.sequence, Ranges(), 1, removed=True, copy_of=job)
        self._copies[job.job.id] = self._leases.repeat(copy, worker, estimate)

    def _promote(self, copy: Lease, job: JobRecord) -> None:
        """Let the copy of a request that has lost its worker be its only assignment."""
        del self._copies[job.job.id]
        self._state.waiting.withdraw(job)
        job.pending.take(1, job.ready)
        job.leases.update(copy.job.leases)
        copy.job = job
        self._state.waiting.charge(job, copy.expected_s)

    def _observe(self, lease: Lease) -> None:
        """Follow the time that all but a few of the worker's requests take, by their estimates."""
        worker = self._state.fleet.workers.get(lease.assignment.worker_id)
        estimate_s = lease.assignment.estimate_s
        if worker is None or estimate_s <= 0.0:
            return
        key = worker.id, lease.assignment.engine
        factor = self._lateness.get(key, FACTOR)
        late = self._state.now - lease.assigned_at > factor * estimate_s + MARGIN_S
        factor *= 1.0 + STEP * (QUANTILE if late else QUANTILE - 1.0)
        self._lateness[key] = max(FACTOR, factor)
