"""The scheduler: events in, commands out.

Invariants, after every call of ``handle``:

1. Every query of a job in the system is in exactly one place: recorded, pending, or out on
   one lease. Nothing else creates or destroys queries.
2. A job is in the queue exactly while it has pending queries that are ready to be run.
3. A lease is out until its worker reports the end or leaves, even if its job is gone; a
   report under any other assignment id changes nothing.
4. Assignment ids rise, over restarts too (the epoch is their upper part).
5. The same events at the same times give the same commands.
6. ``wakeup`` is later than the last event, and time alone never makes it come again at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from synergai.domain import EngineName, Fault, Outcome, Session
from synergai.scheduling.estimator import Estimator
from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Command,
    EnginesChanged,
    Event,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    Learned,
    ModeChanged,
    ProfileAdded,
    QueriesDone,
    QueriesReady,
    Reject,
    SchedulingSettings,
    SessionDropped,
    SessionLoaded,
    TimePassed,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from synergai.scheduling.expiries import Expiries
from synergai.scheduling.fleet import Fleet
from synergai.scheduling.leases import Leases
from synergai.scheduling.policy import POLICIES, Give, Preempt, View
from synergai.scheduling.probes import Probes
from synergai.scheduling.ranges import Ranges
from synergai.scheduling.state import JobRecord
from synergai.scheduling.wait_queue import Waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import AssignmentId, JobId, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary
    from synergai.scheduling.events import Assignment, Worker
    from synergai.scheduling.policy import Decision
    from synergai.scheduling.state import Lease, WorkerRecord


class SchedulerCore:
    """Decides which worker runs which queries of which job, in which configuration.

    Args:
        settings: the operator's choices.
        dictionary: what is known of the engines' speed; the core adds what it learns.
        epoch: rises with every start of the gateway, so that assignment ids do too.

    Raises:
        InvalidInput: a setting names a policy that does not exist, or one of its options is wrong.
    """

    def __init__(
        self, settings: SchedulingSettings, dictionary: ConfigurationDictionary, epoch: int = 0
    ) -> None:
        self._settings = settings
        self._policy = POLICIES.make(settings.policy, settings.options)
        self._dictionary = dictionary
        self._estimator = Estimator(dictionary, settings)
        self._fleet = Fleet(settings)
        self._waiting = Waiting(self._policy, self._estimator, self._fleet, settings)
        self._queue = self._waiting.queue
        self._probes = Probes(self._estimator)
        self._view = View(self._queue, self._fleet, self._estimator, settings)
        self._jobs: dict[JobId, JobRecord] = {}
        self._commands: list[Command] = []
        self._leases = Leases(
            self._fleet,
            self._waiting,
            self._estimator,
            self._view,
            settings,
            self._commands,
            epoch,
        )
        self._expiries = Expiries()
        self._next_sequence = 0
        self._now = -math.inf

    # --- what drivers ask ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in `event`, which happened at `now`, and return what is to be done.

        The commands are to be carried out in order.
        """
        self._now = now
        self._take_in(event)
        for job in self._expiries.due(now):
            self._drop(job)
            self._commands.append(Expire(job.job.id))
        if self._queue or self._policy.rebalances:
            self._schedule()
        commands = self._commands.copy()
        self._commands.clear()
        return commands

    def wakeup(self) -> float | None:
        """The instant at which ``TimePassed`` has to be handled, or None if only events matter."""
        instant = self._expiries.next()
        if self._queue:
            instant = min(
                instant,
                self._waiting.wakeup(self._now),
                self._fleet.next_available_at(self._now),
            )
        return instant if instant < math.inf else None

    def assignment(self, assignment_id: AssignmentId) -> Assignment | None:
        """The assignment, if it is outstanding and its job still wants its results."""
        lease = self._leases.get(assignment_id)
        return None if lease is None or lease.job.gone else lease.assignment

    @property
    def queued(self) -> int:
        """How many jobs wait for a worker."""
        return len(self._queue)

    @property
    def workers(self) -> Mapping[WorkerId, WorkerRecord]:
        """The fleet, to be read and not written."""
        return self._fleet.workers

    def unprofiled(self, worker_id: WorkerId) -> list[EngineName]:
        """The engines of a worker that the dictionary lacks on its class."""
        worker = self._fleet.workers[worker_id]
        return sorted(self._probes.lacks(worker))

    # --- events -------------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:
        match event:
            case JobArrived():
                self._job_arrived(event)
            case AssignmentEnded():
                self._assignment_ended(event)
            case QueriesDone(assignment_id, done, compute_s):
                if lease := self._leases.get(assignment_id):
                    self._leases.progressed(lease, done, compute_s, self._now)
            case AssignmentStarted(assignment_id, setup_s):
                if lease := self._leases.get(assignment_id):
                    self._started(lease, setup_s)
            case QueriesReady(job_id, ready):
                if job := self._jobs.get(job_id):
                    self._waiting.remove(job)
                    job.ready = max(job.ready, ready)
                    self._waiting.add(job)
            case JobCancelled(job_id):
                if job := self._jobs.get(job_id):
                    self._drop(job)
            case WorkerJoined(worker):
                if known := self._fleet.workers.get(worker.id):
                    self._worker_left(known)
                self._worker_joined(worker)
            case TimePassed():
                pass
            case ProfileAdded(entry):
                self._dictionary.put(entry)
                self._profile_changed(entry.engine)
            case _:
                if record := self._fleet.workers.get(event.worker_id):
                    self._worker_changed(record, event)

    def _job_arrived(self, event: JobArrived) -> None:
        job = event.job
        if job.id in self._jobs:
            return
        pending = Ranges.missing(event.done, job.queries)
        record = JobRecord(
            job, self._next_sequence, pending, event.ready, done=job.queries - pending.total
        )
        self._next_sequence += 1
        self._jobs[job.id] = record
        self._waiting.came(record, self._now)
        if job.perishable and math.isfinite(job.deadline):
            self._expiries.add(record, len(self._jobs))
        if record.left == 0:
            self._finish(record)
        else:
            self._waiting.add(record)

    def _worker_joined(self, worker: Worker) -> None:
        record = self._fleet.join(worker, self._now)
        self._estimator.worker_changed(record)
        self._probes.worker_changed(record)
        for engine in sorted(record.engines):
            self._waiting.rerank(engine)

    def _worker_left(self, worker: WorkerRecord) -> None:
        self._fleet.leave(worker)
        self._estimator.worker_changed(worker)
        self._probes.worker_left(worker)
        for lease in list(worker.leases.values()):
            self._end(lease)
        for engine in sorted(worker.engines):
            self._waiting.rerank(engine)

    def _worker_changed(
        self,
        worker: WorkerRecord,
        event: WorkerDraining
        | WorkerLeft
        | EnginesChanged
        | SessionLoaded
        | SessionDropped
        | ModeChanged,
    ) -> None:
        match event:
            case WorkerDraining():
                worker.draining = True
                self._fleet.update(worker, self._now)
            case WorkerLeft():
                self._worker_left(worker)
            case EnginesChanged(_, engines):
                self._engines_changed(worker, engines)
            case SessionLoaded(_, session, setup_s):
                self._session_loaded(worker, session)
                row = self._dictionary.row(session.engine, worker.worker.worker_class)
                if entry := row.get(session.configuration):
                    self._estimator.observe_setup(worker, entry, setup_s)
            case SessionDropped(_, session):
                worker.sessions.discard(session)
                self._estimator.engine_changed(worker, session.engine)
                self._waiting.rerank(session.engine)
            case ModeChanged(_, mode, switch_s):
                self._mode_changed(worker, mode, switch_s)

    def _engines_changed(self, worker: WorkerRecord, engines: Iterable[EngineName]) -> None:
        before = set(worker.engines)
        self._estimator.worker_changed(worker)
        self._fleet.change_engines(worker, engines)
        self._estimator.worker_changed(worker)
        self._probes.worker_changed(worker)
        for engine in sorted(before ^ worker.engines):
            self._waiting.rerank(engine)

    def _mode_changed(self, worker: WorkerRecord, mode: str, switch_s: float) -> None:
        self._estimator.observe_switch(worker, switch_s)
        if not worker.leases:  # else what it has to do decides in which mode it ends
            worker.power_mode = mode or None
        self._estimator.worker_changed(worker)
        for engine in sorted(worker.engines):
            self._waiting.rerank(engine)

    def _session_loaded(self, worker: WorkerRecord, session: Session) -> None:
        if session not in worker.sessions and worker.worker.keeps_sessions:
            worker.sessions.add(session)
            self._estimator.engine_changed(worker, session.engine)
            self._waiting.rerank(session.engine)

    # --- reports ------------------------------------------------------------------------

    def _started(self, lease: Lease, setup_s: float) -> None:
        worker = self._fleet.workers[lease.assignment.worker_id]
        self._session_loaded(worker, lease.session)
        self._leases.started(lease, setup_s, self._now)

    def _assignment_ended(self, event: AssignmentEnded) -> None:
        lease = self._leases.get(event.assignment_id)
        if lease is None:
            return
        done = max(event.done, lease.done)
        lease.batch = event.batch
        self._leases.progressed(lease, done, event.compute_s, self._now, last=True)
        if lease.done:
            self._learn(lease)
        self._end(lease)
        if event.outcome is Outcome.FAILED:
            self._failed(lease, event.fault, event.detail)
        elif event.outcome is Outcome.COMPLETED and lease.left:
            detail = f"the worker reported completion after {lease.done} of its queries"
            self._failed(lease, Fault.UNSPECIFIED, f"{detail}, not {lease.assignment.count}")

    def _end(self, lease: Lease) -> None:
        self._leases.take_back(lease, self._now)
        self._probes.ended(lease.assignment.id)
        job = lease.job
        if not job.gone and job.left == 0:
            self._finish(job)

    def _failed(self, lease: Lease, fault: Fault, detail: str) -> None:
        """Decide what an assignment's failure means for its job and its worker."""
        engine = lease.assignment.engine
        worker = self._fleet.workers.get(lease.assignment.worker_id)
        if fault in (Fault.ENGINE_BROKEN, Fault.UNKNOWN_ENGINE) and worker is not None:
            self._engines_changed(worker, worker.engines - {engine})
        job = lease.job
        if job.gone:
            return
        if fault is not Fault.UNKNOWN_ENGINE:
            job.faults += 1
        nobody_left = fault is Fault.ENGINE_BROKEN and not self._fleet.serving(engine)
        if fault.is_client_error or nobody_left or job.faults >= self._settings.max_faults:
            self._drop(job)
            self._commands.append(Fail(job.job.id, detail, fault))

    def _learn(self, lease: Lease) -> None:
        """Make what was seen the profile of the engine on the worker's class, if it is better."""
        worker = self._fleet.workers[lease.assignment.worker_id]
        if lease.assignment.probe:
            entry = self._probes.profile(lease, worker.worker.worker_class, self._now)
        else:
            entry = self._probes.outgrown(lease, self._now)
        if entry is None:
            return
        self._estimator.forget_paces(entry.engine, self._fleet.serving(entry.engine))
        self._dictionary.put(entry)
        self._profile_changed(entry.engine)
        self._commands.append(Learned(entry))

    def _profile_changed(self, engine: EngineName) -> None:
        self._estimator.profile_changed(engine, self._fleet.serving(engine))
        self._probes.profile_changed()
        self._waiting.rerank(engine)

    # --- the life of a job --------------------------------------------------------------

    def _drop(self, job: JobRecord) -> None:
        """Take the job out, and stop what of it is running."""
        self._leave_system(job)
        for lease in job.leases.values():
            self._leases.stop(lease, self._now)

    def _finish(self, job: JobRecord) -> None:
        self._leave_system(job)
        self._commands.append(Finish(job.job.id))

    def _leave_system(self, job: JobRecord) -> None:
        del self._jobs[job.job.id]
        job.gone = True
        self._waiting.went(job)

    # --- decisions ----------------------------------------------------------------------

    def _schedule(self) -> None:
        self._waiting.reassess(self._now)
        if self._settings.infeasible == "reject":
            self._reject_infeasible()
        view = self._view
        view.now = self._now
        probing = self._probes.awaited(self._queue)
        if probing:
            self._probe(self._probes.nowhere_known(view))
        while self._carry_out(self._policy.decide(view)) and self._queue:
            pass
        if probing and self._queue:
            self._probe(self._probes.unknown_here(view))

    def _carry_out(self, decisions: Sequence[Decision]) -> bool:
        """Do what the policy decided; False if that changed nothing."""
        before = len(self._commands)
        for decision in decisions:
            match decision:
                case Give(job, worker, estimate, count):
                    configuration = estimate.configuration
                    self._leases.give(job, worker, configuration, count, estimate, self._now)
                case Preempt(lease):
                    self._leases.stop(lease, self._now)
        return len(self._commands) > before

    def _reject_infeasible(self) -> None:
        """Refuse the jobs for which there is no hope."""
        for job in self._waiting.hopeless(self._now):
            remaining_s = job.job.deadline - self._now
            fastest_s = job.job.deadline - job.latest_start
            self._drop(job)
            self._commands.append(
                Reject(
                    job.job.id,
                    f"no acceptable worker: the fastest needs {fastest_s:.3g} s, "
                    f"{max(0.0, remaining_s):.3g} s are left",
                )
            )

    def _probe(self, wanted: Iterable[tuple[JobRecord, WorkerRecord]]) -> None:
        """Measure engines that the dictionary lacks, with a few real queries."""
        for job, worker in wanted:
            count = min(self._settings.probe_queries, job.leasable)
            configuration = max(worker.worker.configurations)
            [lease] = self._leases.give(job, worker, configuration, count, None, self._now)
            self._probes.began(lease.assignment, worker.worker.worker_class)
