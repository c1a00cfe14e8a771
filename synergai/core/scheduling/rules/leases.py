"""Assignments in flight: which worker runs which queries of which job, and its progress.

A lease starts when queries are assigned to a worker and ends when the worker reports the end or
leaves; unfinished queries then return to pending.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.core.scheduling.events import Assignment, Dispatch, Stop
from synergai.core.scheduling.rules.concurrency import expected_wait_s, runs_concurrently
from synergai.core.scheduling.state.estimate import SHORTEST_S, Estimate, Observation
from synergai.core.scheduling.state.jobs import JobRecord, Lease, LeasePhase
from synergai.domain import AssignmentId, BatchTimes, EngineName, JobId, Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.core.scheduling.policy import Assign
    from synergai.core.scheduling.rules.kernel import State
    from synergai.core.scheduling.state.workers import WorkerRecord

_EPOCH_SHIFT: Final = 40
_MUCH_SLOWER: Final = 1.5
"""A lease is divided again once its queries take this many times as long as expected."""
_NO_WAIT_S: Final = 0.005
"""A worker that begins within this time neither sets up nor waits for inputs."""


class _Cost(Struct, frozen=True):
    """Expected cost of one assignment; the estimate is None for a probe."""

    estimate: Estimate | None
    setup_s: float
    per_query_s: float
    total_s: float
    batch_times: BatchTimes | None
    compute_by: float


_UNKNOWN_COST: Final = _Cost(None, 0.0, 0.0, math.inf, None, math.inf)


class Leases:
    """The leases in flight, in `by_id` by assignment; `epoch` forms the upper bits of the ids."""

    def __init__(self, state: State, epoch: int) -> None:
        self._state = state
        state.forget_job.append(self._forget_job)
        self.by_id: dict[AssignmentId, Lease] = {}
        # Those that ran long enough to show a pace of their own; most waiting jobs have not.
        self._paced: dict[EngineName, dict[JobId, JobRecord]] = {}
        self._next_id = (epoch << _EPOCH_SHIFT) + 1

    def paced_jobs(self, engine: EngineName) -> Iterable[JobRecord]:
        """Return the jobs of `engine` in the system that have paces of their own."""
        return self._paced.get(engine, {}).values()

    def _forget_job(self, job: JobRecord) -> None:
        if jobs := self._paced.get(job.job.engine):
            jobs.pop(job.job.id, None)

    # --- assigning ----------------------------------------------------------------------

    def assign(self, decision: Assign) -> bool:
        """Lease queries as the policy decided, one assignment per contiguous range.

        Return whether any were: none are if the worker would load a variant while another one is
        being loaded.
        """
        job, worker, estimate = decision.job, decision.worker, decision.estimate
        wanted = count = decision.count
        if estimate.configuration.variant:
            if self._state.variants.is_on:
                estimate, count = self._state.variants.choose(
                    job, worker, estimate, count, self._state.now
                )
                wanted = count
            if not self._state.estimator.may_use(estimate.session, worker):
                estimate = decision.estimate
                if not self._state.estimator.may_use(estimate.session, worker):
                    return False
            self._begin_load(worker, estimate.session, estimate.setup_s)
        leased_s = 0.0
        self._state.waiting.withdraw(job)
        while count > 0 and (queries := job.pending.take(count, job.ready)):
            count -= queries[1] - queries[0]
            cost = self._cost(job, worker, estimate, queries[1] - queries[0])
            lease = self._dispatch(job, worker, estimate.session, queries, cost)
            leased_s += lease.expected_s
        if count == wanted:
            raise RuntimeError(f"the policy assigned queries that job {job.job.id} does not have")
        self._state.waiting.charge(job, leased_s)
        if self._state.variants.engines and job.is_request and not estimate.configuration.variant:
            self._state.variants.charge(worker, leased_s, self._state.now)
        self._update_worker(worker, estimate.session, loads=estimate.setup_s > 0)
        if job.pending.total:
            self._state.waiting.enqueue(job)
        return True

    def probe(self, job: JobRecord, worker: WorkerRecord) -> Lease:
        """Lease a few queries to measure their engine; see `Estimator.to_measure`."""
        configuration = self._state.estimator.to_measure(job, worker)
        if configuration is None:
            raise RuntimeError(f"job {job.job.id} may not measure its engine on {worker.id}")
        self._state.waiting.withdraw(job)
        queries = job.pending.take(self._state.settings.probe_queries, job.ready)
        if queries is None:
            raise RuntimeError(f"job {job.job.id} has no queries to probe its engine with")
        session = Session(job.job.engine, configuration)
        self._begin_load(worker, session, math.inf)
        lease = self._dispatch(job, worker, session, queries, _UNKNOWN_COST)
        self._update_worker(worker, session, loads=True)
        self._state.waiting.enqueue(job)
        return lease

    def _begin_load(self, worker: WorkerRecord, session: Session, setup_s: float) -> None:
        """Record the load of a variant that an assignment needs, if it is not loaded."""
        if not session.configuration.variant or session in worker.sessions:
            return
        if worker.worker.keeps_sessions:
            now = self._state.now
            # No setup was expected of a session that the worker dropped since.
            seconds = worker.free_at(now) - now + (setup_s or math.inf)
            self._state.loads.begin(worker.id, session, seconds, now)

    def _cost(
        self,
        job: JobRecord,
        worker: WorkerRecord,
        estimate: Estimate,
        count: int,
    ) -> _Cost:
        """Return what `count` of the job's queries cost as the worker's next assignment."""
        setup_s = self._state.setup_s(job, worker, estimate) if estimate.setup_s else 0.0
        per_query_s = self._state.per_query_s(job, worker, estimate)
        batch_times = None
        compute_by = math.inf
        if job.job.queries > 1:
            batch_times = estimate.job_batch_times
        elif estimate.entry.batch_qps and job.job.with_tensors:
            batch_times = estimate.batch_times
        if batch_times is not None and job.job.queries == 1:
            compute_by = job.job.deadline - estimate.transfer_s
            if worker.joins_batch(estimate.session):
                per_query_s = batch_times.seconds(batch_times.max_rows) / batch_times.max_rows
        total_s = setup_s + count * per_query_s
        return _Cost(estimate, setup_s, per_query_s, total_s, batch_times, compute_by)

    def _dispatch(
        self,
        job: JobRecord,
        worker: WorkerRecord,
        session: Session,
        queries: tuple[int, int],
        cost: _Cost,
    ) -> Lease:
        first, stop = queries
        now, configuration = self._state.now, session.configuration
        ahead_s, concurrent = worker.free_at(now) - now, False
        if cost.estimate is not None and job.is_request and worker.leases:
            concurrent = runs_concurrently(worker, cost.estimate)
            if concurrent:
                ahead_s = expected_wait_s(worker, cost.estimate, now)
        estimate_s = ahead_s + cost.total_s
        assignment = Assignment(
            id=AssignmentId(self._next_id),
            job_id=job.job.id,
            engine=job.job.engine,
            worker_id=worker.id,
            configuration=configuration,
            first=first,
            count=stop - first,
            setup_s=cost.setup_s,
            estimate_s=estimate_s if estimate_s < math.inf else 0.0,
            query_s=cost.per_query_s,
            probe=cost.estimate is None,
            batch_times=cost.batch_times,
            compute_by=cost.compute_by,
            concurrent=concurrent,
        )
        self._next_id += 1
        lease = Lease(assignment, job, cost.estimate, cost.total_s, now, session)
        if mode := configuration.power_mode:
            lease.switches_mode = worker.power_mode not in (None, mode)
        self.by_id[assignment.id] = lease
        job.leases[assignment.id] = lease
        worker.append(lease, now)
        self._state.commands.append(Dispatch(assignment))
        return lease

    def _update_worker(self, worker: WorkerRecord, session: Session, *, loads: bool) -> None:
        """Update availability and estimates of a worker that got work for `session`."""
        self._state.fleet.update_availability(worker, self._state.now)
        power_mode = session.configuration.power_mode
        if power_mode and worker.power_mode != power_mode:
            worker.power_mode = power_mode
            self._state.estimator.invalidate_worker(worker)
        elif loads:
            self._state.estimator.invalidate_engine(worker, session.engine)

    # --- progress -----------------------------------------------------------------------

    def record_start(self, lease: Lease, setup_s: float) -> None:
        """Record that setup is over and the first query runs."""
        now = self._state.now
        lease.start(setup_s, now)
        if lease.brings_inputs and setup_s < _NO_WAIT_S:
            self._observe_arrival(lease, now)
        if lease.is_head and lease.estimate is not None and not lease.stopping:
            queries_s = lease.expected_s - lease.assignment.setup_s
            self._set_expected_end(lease, now + max(0.0, queries_s))

    def record_progress(
        self, lease: Lease, done: int, compute_s: float, *, final: bool = False
    ) -> int:
        """Record finished queries, learn from their timing, and return how many are new.

        `done` and `compute_s` count from its start. Implausible numbers are ignored. A `final`
        lease is released next, so its expected end is not updated.
        """
        new = done - lease.done
        if not 0 <= new <= lease.assignment.count - lease.done:
            return 0
        if compute_s < SHORTEST_S * done:
            compute_s = 0.0
        now = self._state.now
        lease.done = done
        lease.job.done += new
        if new and lease.estimate is not None:
            alone = lease.assignment.count == 1 and not lease.assignment.setup_s
            if alone and lease.brings_inputs:
                self._observe_arrival(lease, now - compute_s)
            worker = self._state.fleet.workers[lease.assignment.worker_id]
            self._learn(lease, worker, _observe(lease, new, compute_s, now))
            if lease.job.is_request and lease.estimate.configuration.variant:
                self._state.variants.margins.answered(lease, worker, now)
            lease.compute_s = max(lease.compute_s, compute_s)
            self._state.waiting.mark_drifted(lease.assignment.engine)
            if not final and lease.is_head and not lease.stopping:
                per_query_s = self._state.lease_query_s(lease, worker, lease.estimate)
                self._set_expected_end(lease, now + lease.remaining * per_query_s)
                if per_query_s > _MUCH_SLOWER * lease.believed_query_s:
                    lease.believed_query_s = per_query_s
                    self._state.slowed_at = now
        elif new:
            lease.compute_s = max(lease.compute_s, compute_s)
        lease.reported_at = now
        return new

    def _observe_arrival(self, lease: Lease, at: float) -> None:
        """Learn what the first input took to arrive, for which its worker waited until `at`.

        If the worker did not wait, it was there earlier.
        """
        worker = self._state.fleet.workers[lease.assignment.worker_id]
        arrivals, engine = worker.observed.arrivals, lease.assignment.engine
        took_s = at - lease.assigned_at
        if lease.head_at is None or at - lease.head_at < _NO_WAIT_S:
            took_s = min(took_s, arrivals.get(engine, took_s))
        arrivals[engine] = took_s
        self._state.fleet.update_availability(worker, self._state.now)

    def _learn(self, lease: Lease, worker: WorkerRecord, observation: Observation | None) -> None:
        """Correct the pace of the worker and of this very job."""
        if observation is None or lease.estimate is None:
            return
        self._state.estimator.observe_queries(lease, worker, observation)
        entry = lease.estimate.entry
        if (
            observation.engine_s > 0
            and not lease.job.is_request
            and self._state.estimator.is_current(entry)
        ):
            # What was known before weighs as much as this many seconds of observation.
            prior_s = self._state.settings.pace_half_life_s
            prior_pace = 1.0 if lease.prior_pace is None else lease.prior_pace
            gain = lease.estimate.batch_gain(lease.job.job.queries)
            profiled_s = gain * lease.done / entry.qps
            pace = (observation.engine_s + prior_s * prior_pace) / (profiled_s + prior_s)
            lease.job.paces[worker.id] = pace
            if not lease.job.removed:
                self._paced.setdefault(entry.engine, {})[lease.job.job.id] = lease.job

    def stop(self, lease: Lease, *, for_request: bool = False, abort: bool = False) -> None:
        """Command the worker to stop the lease at its next query; idempotent."""
        if lease.stopping and (lease.aborted_at is not None or not abort):
            return
        now = self._state.now
        assignment = lease.assignment
        self._state.commands.append(Stop(assignment.id, assignment.worker_id, abort))
        worker = self._state.fleet.workers[assignment.worker_id]
        if abort:
            lease.aborted_at = now
        worker.stop(lease, now, for_request=for_request)
        self._state.fleet.update_availability(worker, now)

    def release(self, lease: Lease, *, stopped: bool = False) -> None:
        """End the lease; its unfinished queries are pending again unless the job was removed.

        The worker of a stopped lease continues a load that has begun.
        """
        now = self._state.now
        assignment = lease.assignment
        del self.by_id[assignment.id]
        worker = self._state.fleet.workers.get(assignment.worker_id)
        if worker is not None:
            worker.remove(lease, now)
            self._state.fleet.update_availability(worker, now)
            if lease.session not in worker.sessions:
                needed = any(each.session == lease.session for each in worker.all_leases())
                if stopped and lease.phase is LeasePhase.SETUP:
                    self._leave_load(lease, worker)
                elif not needed and not (
                    stopped and self._state.loads.is_apart(worker.id, lease.session)
                ):
                    self._state.loads.end(worker.id, lease.session)
                self._state.estimator.invalidate_engine(worker, assignment.engine)
                self._state.waiting.mark_drifted(assignment.engine)
        job = lease.job
        del job.leases[assignment.id]
        if lease.remaining and not job.removed:
            if lease.estimate is not None:
                gain = lease.estimate.batch_gain(job.job.queries)
                unused_s = lease.remaining * gain * lease.estimate.per_query_s
                self._state.waiting.charge(job, -unused_s)
            self._state.waiting.withdraw(job)
            first = assignment.first + lease.done
            job.pending.add(first, first + lease.remaining)
            self._state.waiting.enqueue(job)

    def _leave_load(self, lease: Lease, worker: WorkerRecord) -> None:
        """Record that a worker continues the load that a stopped lease has begun."""
        if lease.head_at is None or lease.estimate is None or not worker.worker.cores:
            return
        begun_s = 0.0  # of a load that it took over
        if self._state.loads.is_apart(worker.id, lease.session):
            begun_s = lease.estimate.setup_s - lease.assignment.setup_s
        self._state.loads.goes_on(
            worker.id, lease.session, lease.head_at - begun_s, concurrent=True
        )

    def _set_expected_end(self, lease: Lease, at: float) -> None:
        """Set when the worker's head lease is expected to end; no-op for a concurrent one."""
        if lease.assignment.concurrent:
            return
        worker = self._state.fleet.workers[lease.assignment.worker_id]
        worker.head_ends_at = at
        self._state.fleet.update_availability(worker, self._state.now)


def _observe(lease: Lease, new: int, compute_s: float, now: float) -> Observation | None:
    """Derive execution times from a report of `new` finished queries, which `lease.done` includes.

    `compute_s` is the time inside the engine since the lease's start; 0 if unknown. None if it is
    unknown when the first query began.
    """
    if lease.job.job.with_tensors:
        return Observation(_alone_s(lease, compute_s), *_transfers(lease, new, compute_s, now))
    began_at = _began_at(lease)
    if began_at is None or now <= began_at:
        return None
    return Observation(now - began_at)


def _began_at(lease: Lease) -> float | None:
    if lease.first_query_at is None and lease.assignment.setup_s == 0.0:
        return lease.head_at
    return lease.first_query_at


def _transfers(lease: Lease, new: int, compute_s: float, now: float) -> tuple[float | None, int]:
    """Return the time outside the engine since the last report, and for how many queries.

    The time is None if it is unknown.
    """
    since = lease.reported_at if lease.reported_at is not None else _began_at(lease)
    spent_s = compute_s - lease.compute_s
    if lease.first_query_at is not None and lease.done == new:
        new -= 1  # the first input was there when its query began
    if since is None or spent_s <= 0 or new == 0:
        return None, 0
    transfer_s = now - since - spent_s
    # Of a batch only its first report counts: the others become head when it is over.
    if lease.batch_size > 1 and transfer_s <= 0:
        return None, 0
    return transfer_s, new


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
