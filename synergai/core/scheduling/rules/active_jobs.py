"""Active jobs: each from its arrival until it finishes, fails, expires or is cancelled.

An assignment of a job ends with a report, with its worker, or when it is taken back.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from synergai.core.scheduling.events import (
    AssignmentsRevoked,
    Expire,
    Finish,
    JobArrived,
    JobCancelled,
    QueriesReady,
    Revoke,
)
from synergai.core.scheduling.rules.history import SLOW_S, History
from synergai.core.scheduling.state.jobs import JobRecord, Lease, Ranges
from synergai.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.explanations import End
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.rules.leases import Leases
    from synergai.core.scheduling.rules.probes import Probes
    from synergai.core.scheduling.rules.residency import Residency
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import JobId, Session, WorkerId


class ActiveJobs:
    """Lets jobs enter and leave the system, and ends their assignments."""

    def __init__(
        self,
        state: State,
        leases: Leases,
        probes: Probes,
        residency: Residency,
        history: History,
    ) -> None:
        self._state = state
        self._history = history
        self._leases = leases
        self._probes = probes
        self._residency = residency
        self.by_id: dict[JobId, JobRecord] = {}
        self._next_sequence = 0

    # --- jobs ---------------------------------------------------------------------------

    def add(self, event: JobArrived) -> None:
        """Add a job; do nothing if it is active already."""
        job, state = event.job, self._state
        if job.id in self.by_id:
            return
        done = event.done
        pending = Ranges.complement(done, job.queries) if done else Ranges(job.queries)
        record = JobRecord(
            job, self._next_sequence, pending, event.ready, done=job.queries - pending.total
        )
        self._next_sequence += 1
        self.by_id[job.id] = record
        if record.is_stage:
            record.observe_starving(state.now)
        state.waiting.job_added(record)
        if job.engine in state.variants.engines:
            state.variants.families[job.engine].arrived(record, state.now)
        self._residency.arrived(job.engine)
        if job.perishable and job.deadline < math.inf:
            state.call_at(job.deadline, partial(self._expire, record), record)
        if pending.total:
            state.waiting.enqueue(record)
        else:
            self.finish(record)

    def add_ready(self, event: QueriesReady) -> None:
        """Let more queries of a job run."""
        if job := self.by_id.get(event.job_id):
            self._state.waiting.withdraw(job)
            job.ready = max(job.ready, event.ready)
            job.observe_starving(self._state.now)
            self._state.waiting.enqueue(job)

    def cancel(self, event: JobCancelled) -> None:
        """Remove a job that is no longer wanted."""
        if job := self.by_id.get(event.job_id):
            self.abort(job, JobState.CANCELLED)

    def abort(self, job: JobRecord, ended: JobState, reason: str = "") -> None:
        """Remove a job, which ended in a state, and stop its assignments in flight."""
        self._history.ended(job, ended, reason)
        self._remove(job)

    def _remove(self, job: JobRecord) -> None:
        state = self._state
        del self.by_id[job.job.id]
        job.removed = True
        if not job.is_request:
            for forget in state.forget_job:
                forget(job)
            if (family := state.variants.families.get(job.job.engine)) is not None:
                family.jobs.remove(job)
        state.waiting.job_removed(job)
        for lease in job.leases.values():
            self._leases.stop(lease, abort=True)

    def finish(self, job: JobRecord) -> None:
        """Remove a job whose queries are all recorded."""
        if job.runs is not None or not job.is_request:
            self._history.ended(job, JobState.SUCCEEDED)
        # An assignment whose queries are all recorded may not have ended yet.
        self._remove(job)
        self._state.commands.append(Finish(job.job.id))

    def _expire(self, job: JobRecord) -> None:
        self.abort(job, JobState.EXPIRED)
        self._state.commands.append(Expire(job.job.id))

    # --- assignments --------------------------------------------------------------------

    def release(self, lease: Lease, end: End, detail: str = "") -> None:
        """End a lease in some way; its job finishes if nothing of it remains."""
        job, now = lease.job.job, self._state.now
        if lease.done < job.queries or now > job.deadline or now > job.arrival + SLOW_S:
            self._history.released(lease, end, detail)
        self._leases.release(lease, stopped=end in ("stopped", "revoked"))
        self._residency.released(lease)
        if lease.assignment.probe:
            self._probes.finished(lease.assignment.id)
        record = lease.job
        if record.is_stage:
            record.observe_starving(now)
        if not record.removed and record.remaining == 0:
            self.finish(record)

    def revoke(self, worker: WorkerRecord, session: Session | None = None) -> None:
        """Take the assignments of a worker back, or only those that run in `session`."""
        for lease in worker.all_leases():
            if session is None or lease.session == session:
                self._state.commands.append(Revoke(lease.assignment.id, worker.id))
                self.release(lease, "revoked")

    def revoke_all(self, event: AssignmentsRevoked) -> None:
        """Take back the assignments of a worker whose reports are not trusted."""
        if worker := self._state.fleet.workers.get(event.worker_id):
            self.revoke(worker)

    # --- expectations -------------------------------------------------------------------

    def expected_completion(self, job_id: JobId) -> float | None:
        """Return when a job is expected to complete; None if it has ended or that is unknown.

        Queries in flight end with the work of their workers. Queries that are not dispatched, as
        their tensors have not arrived or other work runs first, follow the policy's plan if it has
        one. Otherwise they run next on the workers that run the job, or on the one that would
        complete them soonest.
        """
        state, job = self._state, self.by_id.get(job_id)
        if job is None:
            return None
        left = job.pending.total
        until = state.now
        running: dict[WorkerId, tuple[float, float]] = {}
        for lease in job.leases.values():
            if lease.estimate is None:
                return None
            if lease.stopping:
                left += lease.remaining
                continue
            worker = state.workers[lease.assignment.worker_id]
            ends_at = worker.ends_at(lease, state.now)
            running[worker.id] = ends_at, 1 / state.lease_query_s(lease, worker, lease.estimate)
            until = max(until, ends_at)
        if left and job.planned_at is not None and job.planned_at > state.now:
            until = max(until, job.planned_at)
        elif left and running:
            ready = sorted((at, number) for number, (at, _) in enumerate(running.values()))
            until = max(until, water_fill(left, ready, [rate for _, rate in running.values()]))
        elif left:
            until = max(until, self._soonest(job, left))
        return until if math.isfinite(until) else None

    def _soonest(self, job: JobRecord, queries: int) -> float:
        """Return when the best worker would complete `queries` of the job as its next work."""
        state = self._state
        candidates = state.candidates(job, state.serving(job.job.engine))
        return min(
            (
                each.worker.free_at(state.now)
                + state.setup_s(job, each.worker, each.estimate)
                + queries * state.per_query_s(job, each.worker, each.estimate)
                for each in candidates
            ),
            default=math.inf,
        )


def water_fill(queries: float, ready: Sequence[tuple[float, int]], rates: Sequence[float]) -> float:
    """Return when workers complete `queries` if they finish together; `ready` is soonest first."""
    total_rate = work = 0.0
    until = math.inf
    for at, worker in ready:
        if at >= until:
            break
        total_rate += rates[worker]
        work += rates[worker] * at
        until = (queries + work) / total_rate
    return until
