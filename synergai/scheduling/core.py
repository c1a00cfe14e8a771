"""The scheduler: events in, commands out.

`ActiveJobs`, `Reports`, `WorkerChanges` and `ProfileChanges` each apply one kind of event. Then
`Decisions` gives work to the workers.

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

from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentsRevoked,
    AssignmentStarted,
    Command,
    Eject,
    EnginesChanged,
    Event,
    Expire,
    JobArrived,
    JobCancelled,
    ProfilesAdded,
    ProfilesRemoved,
    ProgressChecked,
    QueriesDone,
    QueriesReady,
    TimePassed,
    WorkerJoined,
    WorkerLeft,
)
from synergai.scheduling.policy import POLICIES, View
from synergai.scheduling.queue.wait_queue import WaitQueue
from synergai.scheduling.rules.active_jobs import ActiveJobs
from synergai.scheduling.rules.completion import expected_completion
from synergai.scheduling.rules.crashes import Crashes
from synergai.scheduling.rules.decisions import Decisions
from synergai.scheduling.rules.expiries import Expiries
from synergai.scheduling.rules.failures import Failures
from synergai.scheduling.rules.hedging import Hedging
from synergai.scheduling.rules.interleaving import Interleaver
from synergai.scheduling.rules.leases import Leases
from synergai.scheduling.rules.outliers import Outliers
from synergai.scheduling.rules.probes import Probes
from synergai.scheduling.rules.profile_changes import ProfileChanges
from synergai.scheduling.rules.releases import Releases
from synergai.scheduling.rules.reports import Reports
from synergai.scheduling.rules.residency import Residency
from synergai.scheduling.rules.resumption import Resumption
from synergai.scheduling.rules.retries import Retries
from synergai.scheduling.rules.sharing import CoreSharing
from synergai.scheduling.rules.worker_changes import WorkerChanges
from synergai.scheduling.state.estimator import Estimator
from synergai.scheduling.state.fleet import Fleet
from synergai.scheduling.state.loads import Loads
from synergai.scheduling.state.ranges import Ranges
from synergai.scheduling.state.records import JobRecord
from synergai.scheduling.state.sizes import SessionSizes
from synergai.scheduling.variants.choice import Variants

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.domain import EngineName, Job, JobId, Session, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state.records import WorkerRecord


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
        self._now = -math.inf
        self._commands: list[Command] = []
        commands = self._commands
        policy = self._policy = POLICIES.create(settings.policy, settings.policy_options)
        loads = self._loads = Loads()
        sizes = self._sizes = SessionSizes()
        estimator = self._estimator = Estimator(dictionary, loads, settings)
        fleet = self._fleet = Fleet(settings)
        wait_queue = self._wait_queue = WaitQueue(policy, estimator, fleet, settings)
        queue = self._queue = wait_queue.queue
        probes = self._probes = Probes(estimator, settings.probe_queries)
        variants = self._variants = Variants(estimator, fleet, queue, settings)
        view = self._view = View(queue, fleet, estimator, variants, loads, settings)
        leases = self._leases = Leases(
            fleet, wait_queue, estimator, view, variants, loads, settings, commands, epoch
        )
        interleaver = self._interleaver = Interleaver(queue, fleet, view, estimator, probes)
        resumption = self._resumption = Resumption(view)
        expiries = self._expiries = Expiries()
        outliers = self._outliers = Outliers(fleet, estimator, settings)
        workers = self._workers = WorkerChanges(
            fleet, estimator, dictionary, probes, outliers, wait_queue, view, variants, loads, sizes
        )
        profiles = self._profiles = ProfileChanges(
            dictionary, fleet, estimator, probes, leases, wait_queue, view, commands
        )
        residency = self._residency = Residency(
            fleet, estimator, variants, loads, sizes, commands, settings
        )
        retries = self._retries = Retries()
        crashes = self._crashes = Crashes(fleet, workers, commands)
        hedging = self._hedging = Hedging(
            fleet, estimator, leases, wait_queue, commands, settings.hedge_share
        )
        jobs = self._jobs = ActiveJobs(
            wait_queue, leases, hedging, resumption, variants, probes, residency, expiries, commands
        )
        releases = self._releases = Releases(leases, jobs, residency, probes, hedging, commands)
        failures = Failures(fleet, workers, jobs, retries, wait_queue, settings, commands)
        self._reports = Reports(
            fleet,
            leases,
            workers,
            profiles,
            outliers,
            crashes,
            hedging,
            releases,
            failures,
            None if policy.rebalances else resumption,
        )
        self._decisions = Decisions(
            policy,
            view,
            wait_queue,
            jobs,
            leases,
            probes,
            CoreSharing(queue, fleet, view, estimator),
            interleaver,
            resumption,
            settings,
            commands,
        )

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
            self._jobs.abort(job, now)
            self._commands.append(Expire(job.job.id))
        if self._queue.size:
            self._decisions.schedule(now)
        elif self._policy.rebalances:
            self._decisions.rebalance(now)
        if self._hedging.is_on:
            self._hedging.place(self._queue.engines(), now)
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

    def expected_answer_s(self, job: Job, now: float) -> float | None:
        """Return the seconds until a new request would be answered at the earliest.

        None if a worker is idle, or nothing is known. See `Interleaver.expected_answer_s`.
        """
        self._view.now = now
        request = JobRecord(job, self._queue.newest + 1, Ranges.complement((), 1), 1)
        self._wait_queue.rank(request)
        return self._interleaver.expected_answer_s(request, interruptible=not self._settings.strict)

    def expected_completion(self, job_id: JobId, now: float) -> float | None:
        """Return when a job is expected to complete, in monotonic seconds.

        None if it has ended or nothing is known. See `completion.expected_completion`.
        """
        job = self._jobs.by_id.get(job_id)
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
                self._jobs.add(event, self._now)
            case AssignmentEnded():
                self._reports.ended(event, self._now)
            case QueriesDone():
                self._reports.progressed(event, self._now)
            case AssignmentStarted():
                self._reports.started(event, self._now)
            case QueriesReady(job_id, ready):
                if job := self._jobs.by_id.get(job_id):
                    self._wait_queue.withdraw(job)
                    job.ready = max(job.ready, ready)
                    self._wait_queue.enqueue(job)
            case JobCancelled(job_id):
                if job := self._jobs.by_id.get(job_id):
                    self._jobs.abort(job, self._now)
            case AssignmentsRevoked(worker_id):
                if record := self._fleet.workers.get(worker_id):
                    self._releases.revoke(record, self._now)
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
        for lease in worker.all_leases():
            self._releases.release(lease, self._now)
        for engine in sorted(worker.engines):
            self._wait_queue.rerank(engine)

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

    def _check_progress(self) -> None:
        for worker in list(self._fleet.workers.values()):
            self._outliers.start_trial(worker, self._now)
            if self._outliers.is_stuck(worker, self._now):
                self._eject(worker)

    def _eject(self, worker: WorkerRecord) -> None:
        """Take all assignments of a worker back, and give it no others for a while."""
        pause_s = self._outliers.eject(worker, self._now)
        self._releases.revoke(worker, self._now)
        self._commands.append(Eject(worker.id, pause_s))
