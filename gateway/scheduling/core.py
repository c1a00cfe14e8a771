"""The scheduler: events in, commands out.

Invariants, after every call of ``handle``:

1. Every query of a job in the system is in exactly one place: recorded, pending, or out on
   one lease. Nothing else creates or destroys queries.
2. A job is in the queue exactly while it has pending queries that are ready to be run.
3. A lease is out until its worker reports the end or leaves, even if its job is gone; a
   report under any other assignment id changes nothing.
4. Assignment ids rise, over restarts too (the epoch is their upper part).
5. The same events at the same times give the same commands.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Final

from gateway.scheduling.estimator import Estimator
from gateway.scheduling.events import (
    Assignment,
    AssignmentEnded,
    AssignmentStarted,
    Command,
    Dispatch,
    EnginesChanged,
    Event,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    Learned,
    ProfileAdded,
    QueriesDone,
    QueriesReady,
    Reject,
    SchedulingSettings,
    SessionDropped,
    SessionLoaded,
    Stop,
    TimePassed,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from gateway.scheduling.policy import POLICIES, Give, Policy, Preempt, View
from gateway.scheduling.queue import JobQueue
from gateway.scheduling.ranges import Ranges
from gateway.scheduling.state import JobRecord, Lease, WorkerRecord
from synergai.dictionary import ProfileEntry
from synergai.domain import AssignmentId, EngineName, Fault, Outcome, Session, WorkerClass
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.scheduling.estimator import Estimate
    from gateway.scheduling.events import Worker
    from synergai.dictionary import ConfigurationDictionary
    from synergai.domain import Configuration, JobId, WorkerId

REASSESS_S: Final = 1.0
"""How often waiting jobs are ranked anew while observed paces drift (thesis: periodic update)."""
_EPOCH_SHIFT: Final = 40


class SchedulerCore:
    """Decides which worker runs which queries of which job, in which configuration.

    Args:
        settings: the operator's choices.
        dictionary: what is known of the engines' speed; the core adds what it learns.
        epoch: rises with every start of the gateway, so that assignment ids do too.

    Raises:
        InvalidInput: a setting is out of its range or names a policy that does not exist.
    """

    def __init__(
        self, settings: SchedulingSettings, dictionary: ConfigurationDictionary, epoch: int = 0
    ) -> None:
        if settings.infeasible not in {"defer", "reject"}:
            raise InvalidInput(
                f"infeasible must be 'defer' or 'reject', not {settings.infeasible!r}"
            )
        self._settings = settings
        self._policy: Policy = POLICIES.get(settings.policy)(**settings.options)
        self._dictionary = dictionary
        self._estimator = Estimator(dictionary)
        self._queue = JobQueue()
        self._jobs: dict[JobId, JobRecord] = {}
        self._workers: dict[WorkerId, WorkerRecord] = {}
        self._leases: dict[AssignmentId, Lease] = {}
        self._serving: dict[EngineName, list[WorkerRecord]] = {}
        self._probing: dict[AssignmentId, tuple[EngineName, WorkerClass]] = {}
        self._expiries: list[tuple[float, int, JobId]] = []
        self._next_id = (epoch << _EPOCH_SHIFT) + 1
        self._next_sequence = 0
        self._next_index = 0
        self._paces_drifted_at: float | None = None
        self._now = -math.inf
        self._commands: list[Command] = []

    # --- what drivers ask ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in `event`, which happened at `now`, and return what is to be done.

        The commands are to be carried out in order.
        """
        self._now = now
        self._take_in(event)
        self._expire()
        self._schedule()
        commands, self._commands = self._commands, []
        return commands

    def wakeup(self) -> float | None:
        """The instant at which ``TimePassed`` has to be handled, or None if only events matter."""
        instants: list[float] = []
        while self._expiries and self._expiries[0][2] not in self._jobs:
            heapq.heappop(self._expiries)
        if self._expiries:
            instants.append(self._expiries[0][0])
        if self._queue:
            rank = self._queue.next_rank(self._now)
            if rank is not None and math.isfinite(rank):
                instants.append(math.nextafter(rank, math.inf))
            if self._paces_drifted_at is not None:
                instants.append(self._paces_drifted_at + REASSESS_S)
            engines = self._queue.engines()
            instants.extend(
                worker.free_at(self._now) - self._settings.prefetch_s
                for worker in self._workers.values()
                if worker.leases and not worker.draining and not engines.isdisjoint(worker.engines)
            )
        return min((i for i in instants if i > self._now), default=None)

    def assignment(self, assignment_id: AssignmentId) -> Assignment | None:
        """The assignment, if it is outstanding and its job still wants its results."""
        lease = self._leases.get(assignment_id)
        if lease is None or lease.job.job.id not in self._jobs:
            return None
        return lease.assignment

    @property
    def queued(self) -> int:
        """How many jobs wait for a worker."""
        return len(self._queue)

    @property
    def workers(self) -> Mapping[WorkerId, WorkerRecord]:
        """The fleet, to be read and not written."""
        return self._workers

    def unprofiled(self, worker_id: WorkerId) -> list[EngineName]:
        """The engines of a worker that the dictionary lacks on its class."""
        worker = self._workers[worker_id]
        return sorted(e for e in worker.engines if self._estimator.estimate(e, worker) is None)

    # --- events -------------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:
        match event:
            case JobArrived():
                self._job_arrived(event)
            case AssignmentEnded():
                self._assignment_ended(event)
            case QueriesDone(assignment_id, done, compute_s):
                if lease := self._leases.get(assignment_id):
                    self._progress(lease, done, compute_s)
            case AssignmentStarted(assignment_id, setup_s):
                if lease := self._leases.get(assignment_id):
                    self._started(lease, setup_s)
            case QueriesReady(job_id, ready):
                if job := self._jobs.get(job_id):
                    self._requeue(job, ready=max(job.ready, ready))
            case JobCancelled(job_id):
                if job := self._jobs.get(job_id):
                    self._drop(job)
            case WorkerJoined(worker):
                self._worker_left(worker.id)
                self._worker_joined(worker)
            case WorkerDraining(worker_id):
                if worker_record := self._workers.get(worker_id):
                    worker_record.draining = True
            case WorkerLeft(worker_id):
                self._worker_left(worker_id)
            case EnginesChanged(worker_id, engines):
                if worker_record := self._workers.get(worker_id):
                    self._engines_changed(worker_record, engines)
            case SessionLoaded(worker_id, session, setup_s):
                if worker_record := self._workers.get(worker_id):
                    self._session_loaded(worker_record, session, setup_s)
            case SessionDropped(worker_id, session):
                if worker_record := self._workers.get(worker_id):
                    worker_record.sessions.discard(session)
                    self._estimator.worker_changed(worker_id)
                    self._rerank({session.engine})
            case ProfileAdded(entry):
                self._dictionary.put(entry)
                self._estimator.profile_changed()
                self._rerank({entry.engine})
            case TimePassed():
                pass

    def _job_arrived(self, event: JobArrived) -> None:
        job = event.job
        pending = Ranges.missing(event.done, job.queries)
        record = JobRecord(
            job, self._next_sequence, pending, event.ready, done=job.queries - pending.total
        )
        self._next_sequence += 1
        self._jobs[job.id] = record
        if job.perishable and math.isfinite(job.deadline):
            heapq.heappush(self._expiries, (job.deadline, record.sequence, job.id))
        if record.left == 0:
            self._finish(record)
        elif record.leasable:
            self._enqueue(record)

    def _worker_joined(self, worker: Worker) -> None:
        record = WorkerRecord(
            worker,
            self._next_index,
            set(worker.engines),
            set(worker.sessions),
            idle_since=self._now,
        )
        self._next_index += 1
        self._workers[worker.id] = record
        for engine in record.engines:
            self._serving.setdefault(engine, []).append(record)
        self._rerank(record.engines)

    def _worker_left(self, worker_id: WorkerId) -> None:
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        for engine in worker.engines:
            self._serving[engine].remove(worker)
        self._estimator.forget(worker_id)
        for lease in list(worker.leases.values()):
            self._end(lease)
        self._rerank(worker.engines)

    def _engines_changed(self, worker: WorkerRecord, engines: Iterable[EngineName]) -> None:
        new = set(engines)
        for engine in worker.engines - new:
            self._serving[engine].remove(worker)
        for engine in new - worker.engines:
            self._serving.setdefault(engine, []).append(worker)
        changed = worker.engines ^ new
        worker.engines = new
        self._estimator.worker_changed(worker.id)
        self._rerank(changed)

    def _session_loaded(self, worker: WorkerRecord, session: Session, setup_s: float) -> None:
        worker.sessions.add(session)
        self._estimator.worker_changed(worker.id)
        entry = self._entry(session.engine, worker, session.configuration)
        if entry is not None:
            self._estimator.observe_setup(worker.id, entry, setup_s)
        self._rerank({session.engine})

    def _entry(
        self, engine: EngineName, worker: WorkerRecord, configuration: Configuration
    ) -> ProfileEntry | None:
        return self._dictionary.row(engine, worker.worker.worker_class).get(configuration)

    # --- the life of a lease ------------------------------------------------------------

    def _started(self, lease: Lease, setup_s: float) -> None:
        now = self._now
        lease.first_query_at = lease.reported_at = now
        lease.setup_s = setup_s
        worker = self._workers[lease.assignment.worker_id]
        session = Session(lease.assignment.engine, lease.assignment.configuration)
        if session not in worker.sessions:
            worker.sessions.add(session)
            self._estimator.worker_changed(worker.id)
            self._rerank({session.engine})
        if lease.head_at is not None and lease.estimate is not None:
            queries_s = lease.seconds - lease.estimate.setup_s
            worker.head_ends_at = now + max(0.0, queries_s)

    def _progress(self, lease: Lease, done: int, compute_s: float) -> None:
        """Record queries and learn from how long they took."""
        new = done - lease.done
        if not 0 <= new <= lease.assignment.count - lease.done:
            return
        now = self._now
        worker = self._workers[lease.assignment.worker_id]
        lease.done = done
        lease.job.done += new
        self._observe(lease, worker, new, compute_s)
        lease.reported_at = now
        if lease.head_at is not None and lease.estimate is not None:
            estimate = self._estimator.estimate(lease.assignment.engine, worker)
            per_query_s = (estimate or lease.estimate).per_query_s
            left = 0 if lease.stopping else lease.assignment.count - done
            worker.head_ends_at = now + left * per_query_s

    def _observe(self, lease: Lease, worker: WorkerRecord, new: int, compute_s: float) -> None:
        if lease.estimate is None or new <= 0:
            return
        engine_s = compute_s - lease.compute_s
        lease.compute_s = compute_s
        since = lease.reported_at
        if since is None and lease.estimate.setup_s == 0.0:
            since = lease.head_at
        wall_s = self._now - since if since is not None else 0.0
        entry = lease.estimate.entry
        if lease.job.job.with_tensors:
            self._estimator.observe_pace(worker.id, entry, engine_s, new)
            if wall_s > 0 and engine_s > 0:
                self._estimator.observe_transfer(worker.id, entry.engine, (wall_s - engine_s) / new)
        else:
            self._estimator.observe_pace(worker.id, entry, wall_s, new)
        if self._paces_drifted_at is None:
            self._paces_drifted_at = self._now

    def _assignment_ended(self, event: AssignmentEnded) -> None:
        lease = self._leases.get(event.assignment_id)
        if lease is None:
            return
        self._progress(lease, max(event.done, lease.done), event.compute_s)
        if lease.assignment.probe and lease.done:
            self._learn(lease)
        self._end(lease)
        if event.outcome is Outcome.FAILED:
            self._failed(lease, event.fault, event.detail)

    def _end(self, lease: Lease) -> None:
        """Take the lease back: what it has not done is pending again."""
        assignment = lease.assignment
        del self._leases[assignment.id]
        worker = self._workers.get(assignment.worker_id)
        if worker is not None:
            worker.remove(lease, self._now)
        self._probing.pop(assignment.id, None)
        job = lease.job
        del job.leases[assignment.id]
        if self._jobs.get(job.job.id) is not job:
            return
        if lease.done < assignment.count:
            waiting = bool(job.leasable)
            if waiting:
                self._queue.remove(job)
            job.pending.add(assignment.first + lease.done, assignment.first + assignment.count)
            if job.leasable:
                self._enqueue(job)
        if job.left == 0:
            self._finish(job)

    def _failed(self, lease: Lease, fault: Fault, detail: str) -> None:
        """Decide what an assignment's failure means for its job and its worker."""
        engine = lease.assignment.engine
        worker = self._workers.get(lease.assignment.worker_id)
        if fault in (Fault.ENGINE_BROKEN, Fault.UNKNOWN_ENGINE) and worker is not None:
            self._engines_changed(worker, worker.engines - {engine})
        job = lease.job
        if self._jobs.get(job.job.id) is not job:
            return
        if fault is not Fault.UNKNOWN_ENGINE:
            job.faults += 1
        nobody_left = fault is Fault.ENGINE_BROKEN and not self._serving.get(engine)
        if fault.of_client or nobody_left or job.faults >= self._settings.max_faults:
            self._drop(job)
            self._commands.append(Fail(job.job.id, detail, fault))

    def _learn(self, lease: Lease) -> None:
        """Make the probe's queries the profile of its engine on its worker's class."""
        worker = self._workers[lease.assignment.worker_id]
        began = lease.first_query_at if lease.first_query_at is not None else lease.head_at
        wall_s = self._now - began if began is not None else 0.0
        seconds = lease.compute_s or wall_s
        if lease.estimate is not None or seconds <= 0:
            return
        entry = ProfileEntry(
            engine=lease.assignment.engine,
            worker_class=worker.worker.worker_class,
            configuration=lease.assignment.configuration,
            qps=lease.done / seconds,
            model_load_s=lease.setup_s,
            queries=lease.done,
            label="observed",
        )
        self._dictionary.put(entry)
        self._estimator.profile_changed()
        self._rerank({entry.engine})
        self._commands.append(Learned(entry))

    # --- the life of a job --------------------------------------------------------------

    def _enqueue(self, job: JobRecord) -> None:
        job.rank = self._policy.rank(job, self._fastest_s(job))
        self._queue.add(job)

    def _requeue(self, job: JobRecord, *, ready: int) -> None:
        if job.leasable:
            self._queue.remove(job)
        job.ready = ready
        if job.leasable:
            self._enqueue(job)

    def _fastest_s(self, job: JobRecord) -> float:
        """The least time that any worker would need for what nobody has been given yet."""
        engine = job.job.engine
        return min(
            (
                estimate.seconds(job.pending.total, with_tensors=job.job.with_tensors)
                for worker in self._serving.get(engine, ())
                if (estimate := self._estimator.estimate(engine, worker)) is not None
            ),
            default=0.0,
        )

    def _rerank(self, engines: Iterable[EngineName]) -> None:
        """Rank the waiting jobs of `engines` anew, because their estimates are others now."""
        wanted = set(engines)
        for job in [job for job in self._queue if job.job.engine in wanted]:
            self._queue.remove(job)
            self._enqueue(job)

    def _drop(self, job: JobRecord) -> None:
        """Take the job out, and stop what of it is running."""
        if job.leasable:
            self._queue.remove(job)
        del self._jobs[job.job.id]
        for lease in job.leases.values():
            self._stop(lease)

    def _finish(self, job: JobRecord) -> None:
        del self._jobs[job.job.id]
        self._commands.append(Finish(job.job.id))

    def _expire(self) -> None:
        while self._expiries and self._expiries[0][0] <= self._now:
            job = self._jobs.get(heapq.heappop(self._expiries)[2])
            if job is not None:
                self._drop(job)
                self._commands.append(Expire(job.job.id))

    # --- decisions ----------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._queue:
            return
        drifted = self._paces_drifted_at
        if drifted is not None and self._now >= drifted + REASSESS_S:
            self._paces_drifted_at = None
            self._rerank(self._queue.engines())
        if self._settings.infeasible == "reject":
            self._reject_infeasible()
        view = View(self._queue, self._estimator, self._settings, self._workers.values(), self._now)
        while decisions := self._policy.decide(view):
            for decision in decisions:
                match decision:
                    case Give(job, worker, estimate, count):
                        self._give(job, worker, estimate.configuration, count, estimate)
                    case Preempt(lease):
                        self._stop(lease)
        if self._queue:
            self._probe(view)

    def _reject_infeasible(self) -> None:
        """Refuse untouched jobs that no worker could finish in time even if it were free."""
        for job in [job for job in self._queue if not job.done and not job.leases]:
            remaining = job.job.deadline - self._now
            fastest_s = self._fastest_s(job)
            if remaining < fastest_s:
                self._drop(job)
                self._commands.append(
                    Reject(
                        job.job.id,
                        f"no acceptable worker: the fastest needs {fastest_s:.3g} s, "
                        f"{max(0.0, remaining):.3g} s are left",
                    )
                )

    def _probe(self, view: View) -> None:
        """Measure engines that the dictionary lacks on idle workers, with a few real queries."""
        for worker in view.available():
            if worker.leases:
                continue
            for job in self._queue.in_order(worker.engines):
                engine = job.job.engine
                key = (engine, worker.worker.worker_class)
                known = self._estimator.estimate(engine, worker) is not None
                if known or key in self._probing.values():
                    continue
                count = min(self._settings.probe_queries, job.leasable)
                configuration = max(worker.worker.configurations)
                probe = self._give(job, worker, configuration, count, None)
                self._probing[probe.id] = key
                break

    def _give(
        self,
        job: JobRecord,
        worker: WorkerRecord,
        configuration: Configuration,
        count: int,
        estimate: Estimate | None,
    ) -> Assignment:
        self._queue.remove(job)
        taken = job.pending.take(count, job.ready)
        if taken is None:
            raise RuntimeError(f"policy leased queries that job {job.job.id} does not have")
        first, stop = taken
        seconds = setup_s = 0.0
        if estimate is not None:
            seconds = estimate.seconds(stop - first, with_tensors=job.job.with_tensors)
            setup_s = estimate.setup_s
        assignment = Assignment(
            id=AssignmentId(self._next_id),
            job_id=job.job.id,
            engine=job.job.engine,
            worker_id=worker.id,
            configuration=configuration,
            first=first,
            count=stop - first,
            setup_s=setup_s,
            estimate_s=worker.free_at(self._now) - self._now + seconds,
            probe=estimate is None,
        )
        self._next_id += 1
        lease = Lease(assignment, job, estimate, seconds)
        self._leases[assignment.id] = lease
        job.leases[assignment.id] = lease
        worker.append(lease, self._now)
        if configuration.power_mode and worker.power_mode != configuration.power_mode:
            worker.power_mode = configuration.power_mode
            self._estimator.worker_changed(worker.id)
        self._commands.append(Dispatch(assignment))
        if job.leasable:
            self._enqueue(job)
        return assignment

    def _stop(self, lease: Lease) -> None:
        if lease.stopping:
            return
        lease.stopping = True
        assignment = lease.assignment
        self._commands.append(Stop(assignment.id, assignment.worker_id))
        worker = self._workers[assignment.worker_id]
        if lease.head_at is not None:
            worker.head_ends_at = min(worker.head_ends_at, self._now)
