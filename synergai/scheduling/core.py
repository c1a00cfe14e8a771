"""The scheduler: events in, commands out.

Invariants after every call of ``handle``:

1. Every query of an active job is in exactly one state: recorded, pending, or leased to one
   worker. No other code creates or destroys queries. A late request may have one copy in flight,
   which is no query of its job; whichever answers first ends the request.
2. A job is queued if and only if it has pending queries that are ready to run, and does not pause
   before a retry.
3. A lease lasts until its worker reports the end, leaves or is ejected, even if its job is removed
   first.
   Reports under any other assignment id change nothing.
4. Assignment ids increase, also across restarts: the epoch forms their upper bits.
5. The same events at the same times produce the same commands.
6. ``wakeup`` is later than the last event, and ``TimePassed`` alone never makes it recur forever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from synergai.domain import EngineName, Fault, Outcome
from synergai.scheduling.checks import Checks
from synergai.scheduling.completion import expected_completion
from synergai.scheduling.crashes import Crashes
from synergai.scheduling.estimator import Estimator
from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentsRevoked,
    AssignmentStarted,
    CheckArrived,
    Command,
    Eject,
    EnginesChanged,
    Event,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    ProfilesAdded,
    ProfilesRemoved,
    ProgressChecked,
    QueriesDone,
    QueriesReady,
    Reject,
    Revoke,
    TimePassed,
    WorkerJoined,
    WorkerLeft,
)
from synergai.scheduling.expiries import Expiries
from synergai.scheduling.fleet import Fleet
from synergai.scheduling.hedging import Hedging
from synergai.scheduling.interleaving import Interleaver
from synergai.scheduling.leases import Leases
from synergai.scheduling.loads import Loads
from synergai.scheduling.outliers import Outliers
from synergai.scheduling.policy import POLICIES, Assign, Expect, Preempt, View
from synergai.scheduling.probes import Probes
from synergai.scheduling.profile_changes import ProfileChanges
from synergai.scheduling.ranges import Ranges
from synergai.scheduling.residency import Residency
from synergai.scheduling.resumption import Resumption
from synergai.scheduling.retries import Retries
from synergai.scheduling.sizes import SessionSizes
from synergai.scheduling.state import JobRecord
from synergai.scheduling.variants import Variants
from synergai.scheduling.wait_queue import WaitQueue
from synergai.scheduling.worker_changes import WorkerChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import JobId, Session, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
    from synergai.scheduling.interleaving import Interruption
    from synergai.scheduling.policy import Decision
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state import Lease, WorkerRecord


class SchedulerCore:
    """Decides which worker runs which queries of which job, in which configuration.

    Args:
        settings: scheduling options.
        dictionary: profiled engine speeds; the core adds the profiles it learns.
        epoch: increases with every start of the gateway, and assignment ids with it.

    Raises:
        InvalidInput: the policy does not exist or rejects its options.
    """

    def __init__(
        self, settings: SchedulingSettings, dictionary: ConfigurationDictionary, epoch: int = 0
    ) -> None:
        self._settings = settings
        self._policy = POLICIES.create(settings.policy, settings.policy_options)
        self._loads = Loads()
        self._sizes = SessionSizes()
        self._estimator = Estimator(dictionary, self._loads, settings)
        self._fleet = Fleet(settings)
        self._wait_queue = WaitQueue(self._policy, self._estimator, self._fleet, settings)
        self._queue = self._wait_queue.queue
        self._probes = Probes(self._estimator, settings.probe_queries)
        self._variants = Variants(self._estimator, self._fleet, self._queue, settings)
        self._view = View(self._queue, self._fleet, self._estimator, self._variants, settings)
        self._jobs: dict[JobId, JobRecord] = {}
        self._commands: list[Command] = []
        self._leases = Leases(
            self._fleet,
            self._wait_queue,
            self._estimator,
            self._view,
            self._variants,
            self._loads,
            settings,
            self._commands,
            epoch,
        )
        self._interleaver = Interleaver(
            self._queue, self._fleet, self._view, self._estimator, self._probes
        )
        self._resumption = Resumption(self._view)
        self._expiries = Expiries()
        self._outliers = Outliers(self._fleet, self._estimator, settings)
        self._workers = WorkerChanges(
            self._fleet,
            self._estimator,
            dictionary,
            self._probes,
            self._outliers,
            self._wait_queue,
            self._view,
            self._variants,
            self._loads,
            self._sizes,
        )
        self._profiles = ProfileChanges(
            dictionary,
            self._fleet,
            self._estimator,
            self._probes,
            self._leases,
            self._wait_queue,
            self._view,
            self._commands,
        )
        self._residency = Residency(
            self._fleet,
            self._estimator,
            self._variants,
            self._loads,
            self._sizes,
            self._commands,
            settings,
        )
        self._retries = Retries()
        self._crashes = Crashes(self._fleet, self._workers, self._commands)
        self._checks = Checks(self._fleet, self._estimator, self._leases, self._commands)
        self._hedging = Hedging(
            self._fleet,
            self._estimator,
            self._leases,
            self._wait_queue,
            self._commands,
            settings.hedge_share,
        )
        self._next_sequence = 0
        self._now = -math.inf

    # --- driver interface ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Apply an event and return the commands to execute, in order.

        Args:
            event: what happened.
            now: when it happened, in monotonic seconds; never earlier than the previous event.
        """
        self._now = self._estimator.now = now
        self._apply(event)
        if self._retries.held:
            for job in self._retries.due(now):
                self._wait_queue.enqueue(job)
        if self._crashes.pauses:
            self._crashes.resume(now)
        for job in self._expiries.due(now):
            self._abort(job)
            self._commands.append(Expire(job.job.id))
        if self._queue.size:
            self._schedule()
        elif self._policy.rebalances:
            self._rebalance()
        if self._hedging.is_on:
            self._hedging.place(self._queue.engines(), now)
        if self._checks.waiting:
            self._checks.place(self._queue.engines(), now)
        residency = self._residency
        if now >= residency.rests_until and (residency.due or residency.again_at <= now):
            residency.plan(now)
        commands = self._commands.copy()
        self._commands.clear()
        return commands

    def wakeup(self) -> float | None:
        """Return when ``TimePassed`` must be handled; None if only other events matter."""
        instant = self._expiries.next_deadline()
        if self._retries.held:
            instant = min(instant, self._retries.next_due())
        if self._crashes.pauses:
            instant = min(instant, self._crashes.next_due())
        if self._hedging.is_on:
            instant = min(instant, self._hedging.next_due())
        residency = self._residency
        if residency.due:
            instant = min(instant, residency.rests_until)
        elif residency.again_at < math.inf:
            instant = min(instant, max(residency.rests_until, residency.again_at))
        if self._queue.size:
            instant = min(
                instant,
                self._loads.next_change(self._now),
                self._wait_queue.wakeup(self._now),
                self._fleet.next_available_at(self._now),
            )
        return instant if instant < math.inf else None

    def expected_answer_s(self, engine: EngineName, priority: int, now: float) -> float | None:
        """Return the seconds until a new request would be answered at the earliest.

        None if a worker is idle, or nothing is known. See `Interleaver.expected_answer_s`.
        """
        self._view.now = now
        return self._interleaver.expected_answer_s(
            engine, priority, interruptible=not self._settings.strict
        )

    def expected_completion(self, job_id: JobId, now: float) -> float | None:
        """Return when a job is expected to complete, in monotonic seconds.

        None if it has ended or nothing is known. See `completion.expected_completion`.
        """
        job = self._jobs.get(job_id)
        if job is None:
            return None
        self._view.now = now
        return expected_completion(job, self._view)

    @property
    def queued(self) -> int:
        """Number of jobs that wait for a worker."""
        return len(self._queue)

    @property
    def hedges(self) -> tuple[int, int]:
        """Number of copies of late requests that were sent, and of those that answered first."""
        return self._hedging.sent, self._hedging.won

    @property
    def paces(self) -> Mapping[tuple[WorkerId, EngineName], float]:
        """Observed over profiled time per query, by worker and engine."""
        return self._estimator.paces

    def unprofiled(self, worker_id: WorkerId) -> list[EngineName]:
        """Return the worker's engines that the dictionary lacks for its class, sorted."""
        worker = self._fleet.workers[worker_id]
        return sorted(self._probes.unprofiled(worker))

    def is_unprofiled(self, worker_id: WorkerId, engine: EngineName) -> bool:
        """Return whether the worker has `engine` and the dictionary lacks it for its class."""
        worker = self._fleet.workers.get(worker_id)
        return worker is not None and engine in self._probes.unprofiled(worker)

    def profiles(self, worker_id: WorkerId) -> list[tuple[ProfileEntry, float | None]]:
        """Return the entries of the worker's engines that jobs run with, and the observed paces.

        Sorted by engine; unprofiled engines are left out.
        """
        worker = self._fleet.workers[worker_id]
        return [
            (estimates[0].entry, self._estimator.paces.get((worker_id, engine)))
            for engine in sorted(worker.engines)
            if (estimates := self._estimator.estimates(engine, worker))
        ]

    # --- events -------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        match event:
            case JobArrived():
                self._add_job(event)
            case AssignmentEnded():
                self._end_assignment(event)
            case QueriesDone(assignment_id, done, compute_s):
                if lease := self._leases.get(assignment_id):
                    self._hear(lease, completed=done > lease.done)
                    self._leases.record_progress(lease, done, compute_s, self._now)
                    if self._hedging.is_on:
                        self._end_answered(lease)
            case AssignmentStarted(assignment_id, setup_s):
                if lease := self._leases.get(assignment_id):
                    self._record_start(lease, setup_s)
            case QueriesReady(job_id, ready):
                if job := self._jobs.get(job_id):
                    self._wait_queue.withdraw(job)
                    job.ready = max(job.ready, ready)
                    self._wait_queue.enqueue(job)
            case JobCancelled(job_id):
                if job := self._jobs.get(job_id):
                    self._abort(job)
                else:
                    for lease in self._checks.leases_of(job_id):
                        self._leases.stop(lease, self._now)
                    self._checks.cancel(job_id)
            case CheckArrived():
                self._checks.add(event)
            case AssignmentsRevoked(worker_id):
                if record := self._fleet.workers.get(worker_id):
                    self._revoke(record)
            case WorkerJoined(worker):
                if existing := self._fleet.workers.get(worker.id):
                    self._remove_worker(existing)
                self._profiles.keep(self._workers.add(worker, self._now))
                self._residency.due = self._residency.is_on
            case TimePassed():
                pass
            case ProgressChecked():
                self._check_progress()
            case ProfilesAdded(entries):
                self._profiles.add(entries)
            case ProfilesRemoved(entries):
                self._profiles.remove(entries)
            case WorkerLeft(worker_id):
                if record := self._fleet.workers.get(worker_id):
                    self._remove_worker(record)
            case _:
                if record := self._fleet.workers.get(event.worker_id):
                    if isinstance(event, EnginesChanged):
                        self._crashes.engines_changed(record, event)
                    self._workers.apply(record, event, self._now)
                    if isinstance(event, EnginesChanged):
                        self._profiles.keep(record)
                    self._residency.due = self._residency.is_on

    def _add_job(self, event: JobArrived) -> None:
        job = event.job
        if job.id in self._jobs:
            return
        pending = Ranges.complement(event.done, job.queries)
        record = JobRecord(
            job, self._next_sequence, pending, event.ready, done=job.queries - pending.total
        )
        self._next_sequence += 1
        self._jobs[job.id] = record
        self._wait_queue.job_added(record, self._now)
        if job.engine in self._variants.engines:
            self._variants.arrived(record, self._now)
        if self._residency.is_on:
            self._residency.arrived(job.engine, self._now, is_request=record.is_request)
        if job.perishable and math.isfinite(job.deadline):
            self._expiries.add(record, len(self._jobs))
        if record.remaining == 0:
            self._finish(record)
        else:
            self._wait_queue.enqueue(record)

    def _remove_worker(self, worker: WorkerRecord) -> None:
        self._fleet.remove(worker)
        self._residency.due = self._residency.is_on
        self._sizes.remove_worker(worker.worker)
        self._loads.remove_worker(worker.id)
        self._crashes.remove_worker(worker.id)
        self._variants.fleet_changed()
        self._resumption.discard_worker(worker)
        self._estimator.invalidate_worker(worker)
        self._probes.remove_worker(worker)
        for lease in list(worker.leases.values()):
            self._release(lease)
        for engine in sorted(worker.engines):
            self._wait_queue.rerank(engine)

    # --- reports ------------------------------------------------------------------------

    def _record_start(self, lease: Lease, setup_s: float) -> None:
        worker = self._fleet.workers[lease.assignment.worker_id]
        self._hear(lease)
        self._workers.add_session(worker, lease.session)
        self._leases.record_start(lease, setup_s, self._now)

    def _end_assignment(self, event: AssignmentEnded) -> None:
        lease = self._leases.get(event.assignment_id)
        if lease is None:
            return
        done = max(event.done, lease.done)
        self._hear(lease, completed=event.outcome is Outcome.COMPLETED)
        lease.batch_size = event.batch
        self._leases.record_progress(lease, done, event.compute_s, self._now, final=True)
        if lease.done:
            self._profiles.learn(lease, self._now)
        self._release(lease, stopped=event.outcome is Outcome.STOPPED)
        if lease.yielding and event.outcome is Outcome.STOPPED and lease.job.queued:
            self._remember_interrupted(lease)
        if event.fault is Fault.CRASHED:
            self._pause_variant(lease)
        if event.outcome is Outcome.FAILED:
            self._handle_failure(lease, event.fault, event.detail)
        elif event.outcome is Outcome.COMPLETED and lease.remaining:
            detail = (
                f"worker {lease.assignment.worker_id} reported completion after {lease.done} of "
                f"{lease.assignment.count} queries"
            )
            self._handle_failure(lease, Fault.UNSPECIFIED, detail)

    def _remember_interrupted(self, lease: Lease) -> None:
        """Let the job resume where it ran, unless the policy moves running work by itself."""
        worker = self._fleet.workers.get(lease.assignment.worker_id)
        if worker is not None and not self._policy.rebalances:
            self._resumption.add(lease, worker)

    def _pause_variant(self, crashed: Lease) -> None:
        """Let the variant of an assignment pause on its worker, and take others of it back."""
        worker = self._crashes.crashed(crashed, self._now)
        for lease in () if worker is None else list(worker.leases.values()):
            if lease.session == crashed.session:
                self._commands.append(Revoke(lease.assignment.id, lease.assignment.worker_id))
                self._release(lease, stopped=True)

    def _release(self, lease: Lease, *, stopped: bool = False) -> None:
        self._leases.release(lease, self._now, stopped=stopped)
        if self._residency.is_on:
            self._residency.due = True
        self._probes.finished(lease.assignment.id)
        if self._hedging.is_on:
            self._hedging.released(lease, self._now)
            self._end_answered(lease)
        job = lease.job
        if job.is_check:
            self._checks.released(lease)
        elif not job.removed and job.remaining == 0:
            self._finish(job)

    def _end_answered(self, lease: Lease) -> None:
        """End a request, one of whose two assignments has an answer."""
        if job := self._hedging.answered(lease):
            self._finish(job)

    def _handle_failure(self, lease: Lease, fault: Fault, detail: str) -> None:
        """Charge a failure to the job or the worker; fail the job once its retries are used up."""
        engine = lease.assignment.engine
        worker = self._fleet.workers.get(lease.assignment.worker_id)
        if (
            fault is Fault.ENGINE_BROKEN
            and worker is not None
            and worker.has_other_variants(lease.session, paused=True)
        ):
            fault = Fault.CONFIGURATION_UNUSABLE
        leaves_worker = fault in (Fault.ENGINE_BROKEN, Fault.UNKNOWN_ENGINE)
        if leaves_worker and worker is not None:
            self._workers.set_engines(worker, worker.engines - {engine}, self._now)
        if fault is Fault.CONFIGURATION_UNUSABLE and worker is not None:
            self._workers.add_unusable(worker, lease.session, self._now)
        job = lease.job
        if job.is_check:
            self._checks.failed(job, detail)
        if job.removed:
            return
        # Neither can happen again on the same worker.
        once = fault in (Fault.UNKNOWN_ENGINE, Fault.CONFIGURATION_UNUSABLE)
        counted = not once and self._retries.count_fault(job, lease.assignment.id)
        broken = fault in (Fault.ENGINE_BROKEN, Fault.CONFIGURATION_UNUSABLE)
        no_worker_left = broken and not self._fleet.serving(engine)
        if fault.is_of_query or no_worker_left or job.faults >= self._settings.max_faults:
            self._abort(job)
            self._commands.append(Fail(job.job.id, detail, fault))
        elif counted and not leaves_worker and self._retries.hold(job, self._now):
            self._wait_queue.withdraw(job)

    # --- outliers -----------------------------------------------------------------------

    @property
    def stuck_s(self) -> float:
        """Time without progress, in addition to what is expected, that ejects a worker."""
        return self._settings.stuck_s

    def ejected(self, worker_id: WorkerId) -> bool:
        """Return whether a worker gets no assignments because it made no progress."""
        worker = self._fleet.workers.get(worker_id)
        return worker is not None and worker.ejected_until is not None

    def paused(self, worker_id: WorkerId) -> Mapping[Session, float]:
        """Return until when variants are not used on a worker, as they crashed."""
        worker = self._fleet.workers.get(worker_id)
        return {} if worker is None else worker.paused

    def _hear(self, lease: Lease, *, completed: bool = False) -> None:
        worker = self._fleet.workers[lease.assignment.worker_id]
        self._outliers.heard(worker, self._now)
        if completed and self._crashes.counts:
            self._crashes.completed(lease)
        if completed and (worker.ejections or worker.on_trial):
            self._outliers.completed(worker, self._now)

    def _check_progress(self) -> None:
        for worker in list(self._fleet.workers.values()):
            self._outliers.start_trial(worker, self._now)
            if self._outliers.is_stuck(worker, self._now):
                self._eject(worker)

    def _eject(self, worker: WorkerRecord) -> None:
        """Take all assignments of a worker back, and give it no others for a while."""
        pause_s = self._outliers.eject(worker, self._now)
        self._revoke(worker)
        self._commands.append(Eject(worker.id, pause_s))

    def _revoke(self, worker: WorkerRecord) -> None:
        """Take all assignments of a worker back."""
        for lease in list(worker.leases.values()):
            self._commands.append(Revoke(lease.assignment.id, worker.id))
            self._release(lease, stopped=True)

    # --- job lifecycle ------------------------------------------------------------------

    def _abort(self, job: JobRecord) -> None:
        """Remove the job and stop its assignments in flight."""
        self._remove(job)
        if self._hedging.is_on:
            self._hedging.stop(job, self._now)
        for lease in job.leases.values():
            self._leases.stop(lease, self._now)

    def _finish(self, job: JobRecord) -> None:
        # An assignment whose queries are all recorded may not have ended yet.
        self._abort(job)
        self._commands.append(Finish(job.job.id))

    def _remove(self, job: JobRecord) -> None:
        del self._jobs[job.job.id]
        job.removed = True
        if not job.is_request:  # which is never interrupted, and of which no pace is kept
            self._resumption.discard(job)
            self._leases.job_removed(job)
            self._variants.removed(job)
            self._probes.job_removed(job.job.id)
        self._wait_queue.job_removed(job)

    # --- decisions ----------------------------------------------------------------------

    def _schedule(self) -> None:
        self._wait_queue.reassess(self._now)
        if self._settings.infeasible == "reject":
            self._reject_infeasible()
        view = self._view
        view.now = self._now
        probing = self._probes.are_needed(self._queue)
        if probing:
            self._assign_probes(self._probes.for_unprofiled_engines(view))
            if self._policy.rebalances:
                self._assign_probes(self._probes.for_unplannable_workers(view))
        interleaves = not self._settings.strict
        if interleaves and self._queue.requests:
            self._interrupt(self._interleaver.before_policy())
        # Jobs resume before the policy decides on others, but after the waiting requests.
        resumes = bool(self._resumption.jobs)
        if resumes and not self._queue.requests:
            self._resume()
        while self._execute(self._policy.decide(view)) and self._queue.size:
            pass
        if interleaves and self._queue.requests:
            self._interrupt(self._interleaver.after_policy())
        if resumes:
            self._resume()
        if probing and self._queue.size:
            self._assign_probes(self._probes.for_idle_workers(view))
        if self._policy.rebalances:
            self._stop_for_probes()

    def _rebalance(self) -> None:
        """Let the policy move running work, while no job waits."""
        self._wait_queue.reassess(self._now)
        self._view.now = self._now
        if self._leases:
            self._execute(self._policy.decide(self._view))
        self._stop_for_probes()

    def _stop_for_probes(self) -> None:
        """Stop running jobs where they would measure an unprofiled engine."""
        for lease in self._probes.in_running_jobs(self._view):
            self._leases.stop(lease, self._now)

    def _interrupt(self, interruptions: Iterable[Interruption]) -> None:
        """Run requests between two queries of running jobs."""
        for request, worker, estimate, yielding in interruptions:
            # A job that waits for its load is not held up.
            beside = estimate is not None and worker.runs_beside_load(estimate.session)
            for lease in yielding:
                self._leases.stop(lease, self._now, for_request=True)
            if yielding:
                worker.interruptions += not beside
                worker.interrupted_at = self._now
            if estimate is None:
                self._assign_probes([(request, worker)])
            elif not self._leases.assign(Assign(request, worker, estimate, 1), self._now):
                return  # it would be proposed again and again

    def _resume(self) -> None:
        """Assign interrupted jobs again where they ran, as if there had been no request."""
        for decision in self._resumption.decisions():
            self._leases.assign(decision, self._now)

    def _execute(self, decisions: Sequence[Decision]) -> bool:
        """Execute the policy's decisions; return whether they produced any command."""
        before = len(self._commands)
        for decision in decisions:
            match decision:
                case Assign():
                    self._resumption.discard(decision.job)
                    self._leases.assign(decision, self._now)
                case Preempt(lease):
                    self._leases.stop(lease, self._now)
                case Expect(job, completes_at):
                    job.planned_at = completes_at
        return len(self._commands) > before

    def _reject_infeasible(self) -> None:
        """Reject untouched jobs that no worker can finish before the deadline."""
        for job in self._wait_queue.infeasible(self._now):
            remaining_s = job.job.deadline - self._now
            fastest_s = job.job.deadline - job.latest_start
            self._abort(job)
            self._commands.append(
                Reject(
                    job.job.id,
                    f"no worker can meet the deadline: the fastest needs {fastest_s:.3g} s, "
                    f"{max(0.0, remaining_s):.3g} s remain",
                )
            )

    def _assign_probes(self, probes: Iterable[tuple[JobRecord, WorkerRecord]]) -> None:
        """Measure unprofiled engines with a few real queries."""
        for job, worker in probes:
            self._resumption.discard(job)
            lease = self._leases.probe(job, worker, self._now)
            self._probes.started(lease.assignment, worker.worker.worker_class)
