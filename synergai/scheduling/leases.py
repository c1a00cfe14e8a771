"""Assignments in flight: which worker runs which queries of which job, and its progress.

A lease starts when queries are assigned to a worker and ends when the worker reports the end or
leaves; unfinished queries then return to pending.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.domain import AssignmentId
from synergai.scheduling.events import Assignment, Command, Dispatch, Stop
from synergai.scheduling.observation import learn
from synergai.scheduling.state import Lease

if TYPE_CHECKING:
    from synergai.domain import Configuration
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.policy import View
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state import JobRecord, WorkerRecord
    from synergai.scheduling.wait_queue import WaitQueue

_EPOCH_SHIFT: Final = 40


class Leases:
    """The leases in flight, by assignment id.

    Args:
        fleet: the workers.
        wait_queue: where jobs with pending queries wait.
        estimator: learns from reported progress.
        view: setup and per-query estimates.
        settings: scheduling options.
        commands: output; receives ``Dispatch`` and ``Stop`` in order.
        epoch: upper bits of the assignment ids, which therefore increase across restarts.
    """

    def __init__(
        self,
        fleet: Fleet,
        wait_queue: WaitQueue,
        estimator: Estimator,
        view: View,
        settings: SchedulingSettings,
        commands: list[Command],
        epoch: int,
    ) -> None:
        self._fleet = fleet
        self._wait_queue = wait_queue
        self._estimator = estimator
        self._view = view
        self._settings = settings
        self._commands = commands
        self._by_id: dict[AssignmentId, Lease] = {}
        self._next_id = (epoch << _EPOCH_SHIFT) + 1

    def get(self, assignment_id: AssignmentId) -> Lease | None:
        """Return the lease of an assignment, or None if it is not in flight."""
        return self._by_id.get(assignment_id)

    # --- assigning ----------------------------------------------------------------------

    def assign(
        self,
        job: JobRecord,
        worker: WorkerRecord,
        configuration: Configuration,
        count: int,
        estimate: Estimate | None,
        now: float,
    ) -> list[Lease]:
        """Lease `count` queries of the job to the worker, one assignment per contiguous range.

        Args:
            job: its pending queries are taken lowest first.
            worker: executes the assignments.
            configuration: how the worker runs the engine.
            count: number of queries, at most `job.assignable`.
            estimate: expected cost; None for a probe, which gets only the first range.
            now: the instant of the decision.

        Returns:
            The new leases, in query order.

        Raises:
            RuntimeError: the job has no assignable queries.
        """
        self._wait_queue.withdraw(job)
        setup_s, per_query_s = 0.0, 0.0
        leases: list[Lease] = []
        while count > 0 and (taken := job.pending.take(count, job.ready)):
            first, stop = taken
            count -= stop - first
            seconds = math.inf
            batch_times = None
            if estimate is not None:
                setup_s = self._view.setup_s(job, worker, estimate)
                per_query_s = self._view.per_query_s(job, worker, estimate)
                if estimate.entry.batch_qps and job.job.with_tensors and job.job.queries == 1:
                    batch_times = estimate.batch_times
                if batch_times is not None and worker.joins_batch(estimate.session):
                    per_query_s = batch_times.seconds(batch_times.max_rows) / batch_times.max_rows
                seconds = setup_s + (stop - first) * per_query_s
            estimate_s = worker.free_at(now) - now + seconds
            assignment = Assignment(
                id=AssignmentId(self._next_id),
                job_id=job.job.id,
                engine=job.job.engine,
                worker_id=worker.id,
                configuration=configuration,
                first=first,
                count=stop - first,
                setup_s=setup_s,
                estimate_s=estimate_s if math.isfinite(estimate_s) else 0.0,
                query_s=per_query_s,
                probe=estimate is None,
                batch_times=batch_times,
                compute_by=math.inf
                if batch_times is None or estimate is None
                else job.job.deadline - estimate.transfer_s,
            )
            self._next_id += 1
            lease = Lease(assignment, job, estimate, seconds, now)
            leases.append(lease)
            self._by_id[assignment.id] = lease
            job.leases[assignment.id] = lease
            worker.append(lease, now)
            self._commands.append(Dispatch(assignment))
            if estimate is None:
                break
        if not leases:
            raise RuntimeError(f"the policy assigned queries that job {job.job.id} does not have")
        if estimate is not None:
            self._wait_queue.charge(job, sum([lease.expected_s for lease in leases]), now)
        self._fleet.update_availability(worker, now)
        if configuration.power_mode and worker.power_mode != configuration.power_mode:
            worker.power_mode = configuration.power_mode
            self._estimator.invalidate_worker(worker)
        elif estimate is None or estimate.setup_s > 0:
            self._estimator.invalidate_engine(worker, job.job.engine)
        self._wait_queue.enqueue(job)
        return leases

    # --- progress -----------------------------------------------------------------------

    def record_start(self, lease: Lease, setup_s: float, now: float) -> None:
        """Record that setup is over and the first query runs."""
        lease.first_query_at = lease.reported_at = now
        lease.setup_s = setup_s
        if lease.head_at is not None and lease.estimate is not None and not lease.stopping:
            queries_s = lease.expected_s - lease.assignment.setup_s
            self._set_expected_end(lease, now + max(0.0, queries_s), now)

    def record_progress(
        self, lease: Lease, done: int, compute_s: float, now: float, *, final: bool = False
    ) -> None:
        """Record finished queries and learn from their timing.

        Args:
            lease: the reporting assignment.
            done: queries finished since its start; implausible values are ignored.
            compute_s: time inside the engine since its start; 0 if unknown.
            now: when the report arrived.
            final: the lease is released next, so its expected end is not updated.
        """
        new = done - lease.done
        if not 0 <= new <= lease.remaining:
            return
        lease.done = done
        lease.job.done += new
        if new and lease.estimate is not None:
            worker = self._fleet.workers[lease.assignment.worker_id]
            learn(
                self._estimator,
                worker,
                lease,
                lease.estimate,
                new=new,
                compute_s=compute_s,
                now=now,
                prior_s=self._settings.pace_half_life_s,
            )
            self._wait_queue.mark_drifted(lease.assignment.engine, now)
            if not lease.job.is_request:
                worker.interruptions = 0
            if not final and lease.head_at is not None and not lease.stopping:
                per_query_s = self._view.per_query_s(lease.job, worker, lease.estimate)
                self._set_expected_end(lease, now + lease.remaining * per_query_s, now)
        lease.reported_at = now

    def stop(self, lease: Lease, now: float) -> None:
        """Command the worker to stop the lease at its next query; idempotent."""
        if lease.stopping:
            return
        lease.stopping = True
        assignment = lease.assignment
        self._commands.append(Stop(assignment.id, assignment.worker_id))
        worker = self._fleet.workers[assignment.worker_id]
        worker.stop(lease, now)
        self._fleet.update_availability(worker, now)

    def release(self, lease: Lease, now: float) -> None:
        """End the lease; its unfinished queries are pending again unless the job was removed."""
        assignment = lease.assignment
        del self._by_id[assignment.id]
        worker = self._fleet.workers.get(assignment.worker_id)
        if worker is not None:
            worker.remove(lease, now)
            self._fleet.update_availability(worker, now)
            if lease.session not in worker.sessions:
                self._estimator.invalidate_engine(worker, assignment.engine)
                self._wait_queue.mark_drifted(assignment.engine, now)
        job = lease.job
        del job.leases[assignment.id]
        if lease.remaining and not job.removed:
            if lease.estimate is not None:
                self._wait_queue.charge(job, -lease.remaining * lease.estimate.per_query_s, now)
            self._wait_queue.withdraw(job)
            first = assignment.first + lease.done
            job.pending.add(first, first + lease.remaining)
            self._wait_queue.enqueue(job)

    def _set_expected_end(self, lease: Lease, at: float, now: float) -> None:
        """Set when the worker's head lease is expected to end."""
        worker = self._fleet.workers[lease.assignment.worker_id]
        worker.head_ends_at = at
        self._fleet.update_availability(worker, now)
