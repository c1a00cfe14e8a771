"""What is out: which worker has which queries of which job, and how far it is.

A lease begins when queries are given to a worker and is over when the worker says so or leaves;
what it has not done by then is pending again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.domain import AssignmentId
from synergai.scheduling.events import Assignment, Command, Dispatch, Stop
from synergai.scheduling.observation import learn
from synergai.scheduling.state import Lease

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import Configuration
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import SchedulingSettings
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.policy import View
    from synergai.scheduling.state import JobRecord, WorkerRecord
    from synergai.scheduling.wait_queue import Waiting

_EPOCH_SHIFT: Final = 40


class Leases:
    """The leases that are out, by the ids of their assignments.

    Args:
        commands: where what is to be done is put, in order.
        epoch: the upper part of the ids, which therefore rise over restarts.
    """

    def __init__(
        self,
        fleet: Fleet,
        waiting: Waiting,
        estimator: Estimator,
        view: View,
        settings: SchedulingSettings,
        commands: list[Command],
        epoch: int,
    ) -> None:
        self._fleet = fleet
        self._waiting = waiting
        self._estimator = estimator
        self._view = view
        self._settings = settings
        self._commands = commands
        self._out: dict[AssignmentId, Lease] = {}
        self._next_id = (epoch << _EPOCH_SHIFT) + 1

    def get(self, assignment_id: AssignmentId) -> Lease | None:
        """The lease of an assignment, if it is out."""
        return self._out.get(assignment_id)

    def __iter__(self) -> Iterator[AssignmentId]:
        return iter(self._out)

    # --- giving -------------------------------------------------------------------------

    def give(
        self,
        job: JobRecord,
        worker: WorkerRecord,
        configuration: Configuration,
        count: int,
        estimate: Estimate | None,
        now: float,
    ) -> list[Lease]:
        """Lease `count` queries of the job to the worker: one assignment per range of them.

        Without an estimate it is a probe, and only the first range is given.
        """
        self._waiting.remove(job)
        setup_s, per_query_s = 0.0, 0.0
        given: list[Lease] = []
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
                if batch_times is not None and worker.gathers(estimate.session):
                    per_query_s = batch_times.seconds(batch_times.most) / batch_times.most
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
            given.append(lease)
            self._out[assignment.id] = lease
            job.leases[assignment.id] = lease
            worker.append(lease, now)
            self._commands.append(Dispatch(assignment))
            if estimate is None:
                break
        if not given:
            raise RuntimeError(f"the policy leased queries that job {job.job.id} does not have")
        if estimate is not None:
            self._waiting.charge(job, sum([lease.seconds for lease in given]), now)
        self._fleet.update(worker, now)
        if configuration.power_mode and worker.power_mode != configuration.power_mode:
            worker.power_mode = configuration.power_mode
            self._estimator.worker_changed(worker)
        elif estimate is None or estimate.setup_s > 0:
            self._estimator.engine_changed(worker, job.job.engine)
        self._waiting.add(job)
        return given

    # --- following ----------------------------------------------------------------------

    def started(self, lease: Lease, setup_s: float, now: float) -> None:
        """The setup is over, and the first query runs."""
        lease.first_query_at = lease.reported_at = now
        lease.setup_s = setup_s
        if lease.head_at is not None and lease.estimate is not None and not lease.stopping:
            queries_s = lease.seconds - lease.assignment.setup_s
            self._expect_end(lease, now + max(0.0, queries_s), now)

    def progressed(
        self, lease: Lease, done: int, compute_s: float, now: float, *, last: bool = False
    ) -> None:
        """Record queries and learn from how long they took.

        Args:
            lease: which.
            done: from its start; what cannot be is passed over.
            compute_s: time inside the engine, from its start; 0 if unknown.
            now: when the report came.
            last: it is taken back next, so that nobody asks when it is expected to end.
        """
        new = done - lease.done
        if not 0 <= new <= lease.left:
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
            self._waiting.drifted(lease.assignment.engine, now)
            if not last and lease.head_at is not None and not lease.stopping:
                per_query_s = self._view.per_query_s(lease.job, worker, lease.estimate)
                self._expect_end(lease, now + lease.left * per_query_s, now)
        lease.reported_at = now

    def stop(self, lease: Lease, now: float) -> None:
        """Have the lease's worker stop at its next query; again is harmless."""
        if lease.stopping:
            return
        lease.stopping = True
        assignment = lease.assignment
        self._commands.append(Stop(assignment.id, assignment.worker_id))
        worker = self._fleet.workers[assignment.worker_id]
        worker.stop(lease, now)
        self._fleet.update(worker, now)

    def take_back(self, lease: Lease, now: float) -> None:
        """The lease is over: what it has not done is pending again, if anybody wants it."""
        assignment = lease.assignment
        del self._out[assignment.id]
        worker = self._fleet.workers.get(assignment.worker_id)
        if worker is not None:
            worker.remove(lease, now)
            self._fleet.update(worker, now)
            if lease.session not in worker.sessions:
                self._estimator.engine_changed(worker, assignment.engine)
                self._waiting.drifted(assignment.engine, now)
        job = lease.job
        del job.leases[assignment.id]
        if lease.left and not job.gone:
            if lease.estimate is not None:
                self._waiting.charge(job, -lease.left * lease.estimate.per_query_s, now)
            self._waiting.remove(job)
            first = assignment.first + lease.done
            job.pending.add(first, first + lease.left)
            self._waiting.add(job)

    def _expect_end(self, lease: Lease, at: float, now: float) -> None:
        """Expect the first lease of a worker to end at that instant."""
        worker = self._fleet.workers[lease.assignment.worker_id]
        worker.head_ends_at = at
        self._fleet.update(worker, now)
