"""The scheduler: events in, commands out.

Every kind of event has a handler. After each event, what is due follows, and `Decisions` gives work
to the workers. All rules share one `State`, and keep what only they need.

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
from typing import TYPE_CHECKING, Any, Final

from synergai.core.scheduling import events
from synergai.core.scheduling.rules.active_jobs import ActiveJobs
from synergai.core.scheduling.rules.changes import ProfileChanges, WorkerChanges
from synergai.core.scheduling.rules.decisions import Decisions
from synergai.core.scheduling.rules.failures import Failures
from synergai.core.scheduling.rules.history import History
from synergai.core.scheduling.rules.interleaving import Interleaver
from synergai.core.scheduling.rules.kernel import State
from synergai.core.scheduling.rules.leases import Leases
from synergai.core.scheduling.rules.outliers import Outliers
from synergai.core.scheduling.rules.probes import Exploration, Probes
from synergai.core.scheduling.rules.residency import Residency
from synergai.core.scheduling.state.jobs import JobRecord, Lease, Ranges
from synergai.domain import EngineName, Job, JobId, Outcome, Session, WorkerId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Set

    from synergai.core.explanations import End, Explanation
    from synergai.core.scheduling.events import (
        AssignmentEnded,
        AssignmentStarted,
        Command,
        Event,
        ProgressChecked,
        QueriesDone,
        WorkerJoined,
    )
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

# Aliases for the path of every request: accessing an enum member by name is slow in Python 3.11.
_COMPLETED: Final = Outcome.COMPLETED
_STOPPED: Final = Outcome.STOPPED


class SchedulerCore:
    """Decides which worker runs which queries of which job, in which configuration.

    Args:
        dictionary: profiled engine speeds; the core adds the profiles it learns.
        epoch: increases with every start of the gateway, and assignment ids with it.
    """

    def __init__(
        self, settings: SchedulingSettings, dictionary: ConfigurationDictionary, epoch: int = 0
    ) -> None:
        self._handled_at = -math.inf
        state = self.state = State(settings, dictionary)
        leases = self._leases = Leases(state, epoch)
        probes = self._probes = Probes(state)
        residency = self._residency = Residency(state)
        history = self._history = History(state)
        jobs = self._jobs = ActiveJobs(state, leases, probes, residency, history)
        self._exploration = Exploration(state, leases)
        profiles = self._profiles = ProfileChanges(state, probes, leases)
        workers = self._workers = WorkerChanges(state, jobs, probes, residency)
        self._outliers = Outliers(state, workers, jobs)
        self._failures = Failures(state, workers, jobs)
        interleaver = self._interleaver = Interleaver(state, probes)
        self._decisions = Decisions(state, jobs, leases, probes, interleaver)
        of_worker = self._of_worker
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            events.JobArrived: jobs.add,
            events.QueriesReady: jobs.add_ready,
            events.JobCancelled: jobs.cancel,
            events.AssignmentStarted: self._started,
            events.QueriesDone: self._progressed,
            events.AssignmentEnded: self._ended,
            events.AssignmentsRevoked: jobs.revoke_all,
            events.WorkerJoined: self._joined,
            events.WorkerLeft: of_worker(workers.remove),
            events.WorkerDraining: of_worker(workers.drain),
            events.EnginesChanged: of_worker(workers.change_engines),
            events.ConfigurationsUnusable: of_worker(workers.change_unusable),
            events.SessionLoaded: of_worker(workers.session_loaded),
            events.SessionDropped: of_worker(workers.session_dropped),
            events.ModeChanged: of_worker(workers.change_mode),
            events.ProfilesAdded: profiles.add,
            events.ProfilesRemoved: profiles.remove,
            events.ProgressChecked: self._check_progress,
            events.TimePassed: lambda _: None,
        }

    # --- driver interface ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        """Apply an event and return the commands to execute, in order.

        Args:
            now: when it happened, in monotonic seconds; never earlier than the previous event.
        """
        state = self.state
        self._handled_at = state.now = state.estimator.now = now
        self._handlers[type(event)](event)
        if state.timers and state.timers[0][0] <= now:
            state.call_timers()
        if state.queue.size:
            self._decisions.schedule()
        elif state.policy.rebalances:
            self._decisions.rebalance()
        if type(event) is events.JobArrived and state.policy.rebalances:
            self._decisions.abort_for(event.job)
        if now >= self._residency.due_at:
            self._residency.plan()
        commands, state.commands = state.commands, []
        return commands

    def wakeup(self) -> float | None:
        """Return when ``TimePassed`` must be handled; None if only other events matter."""
        state, now = self.state, self._handled_at
        instant = self._residency.due_at
        if state.timers:
            instant = min(instant, state.next_timer())
        if state.queue.size:
            instant = min(
                instant,
                state.loads.next_change(now),
                state.waiting.wakeup(now),
                state.fleet.next_available_at(now),
            )
        return instant if instant < math.inf else None

    def expected_answer_s(self, job: Job, now: float) -> float | None:
        """Return the seconds until a new request would be answered; None if unknown."""
        self.state.now = now
        request = _record_of(job, self.state.queue.newest + 1)
        self.state.waiting.rank(request)
        return self._interleaver.expected_answer_s(
            request, interruptible=not self.state.settings.strict
        )

    def least_answer_s(self, engine: EngineName) -> float:
        """Return the seconds in which the fastest worker would answer a request; 0 if unknown."""
        return self._interleaver.least_answer_s(engine)

    def expected_completion(self, job_id: JobId, now: float) -> float | None:
        """Return when a job is expected to complete; None if it has ended or that is unknown."""
        self.state.now = now
        return self._jobs.expected_completion(job_id)

    def explain(self, name: str, now: float) -> Iterator[Explanation]:
        """Yield what is known of the requests and jobs with an id, the newest first.

        `name` is the gateway's id, or the id that a client gave its request; empty for all that
        have ended.
        """
        self.state.now = now
        for job in reversed(self._jobs.by_id.values()):
            if name and name in (job.job.id, job.job.client_id):
                yield self._history.explain(job)
        yield from self._history.find(name)

    @property
    def explained_since(self) -> float:
        """When the oldest explained request or job ended; infinite if none was dropped."""
        return self._history.kept_since

    def refused(self, job: Job, reason: str, now: float, *, infeasible: bool) -> None:
        """Note a request that was refused on arrival, maybe because no worker would be in time."""
        self.state.now = now
        self._history.refused(_record_of(job), reason, infeasible=infeasible)

    @property
    def queued(self) -> int:
        """Number of jobs that wait for a worker."""
        return len(self.state.queue)

    def queued_engines(self) -> Set[EngineName]:
        """Return the engines of the jobs that wait for a worker."""
        return self.state.queue.engines()

    @property
    def paces(self) -> Mapping[tuple[WorkerId, EngineName], float]:
        """Observed over profiled time per query, by worker and engine."""
        workers = self.state.fleet.workers.values()
        return {(w.id, engine): pace for w in workers for engine, pace in w.observed.pace.items()}

    def unprofiled(self, worker_id: WorkerId) -> list[EngineName]:
        """Return the worker's engines that the dictionary lacks for its class, sorted."""
        worker = self.state.fleet.workers[worker_id]
        return sorted(self._probes.unprofiled(worker))

    def is_unprofiled(self, worker_id: WorkerId, engine: EngineName) -> bool:
        """Return whether the worker has `engine` and the dictionary lacks it for its class."""
        worker = self.state.fleet.workers.get(worker_id)
        return worker is not None and engine in self._probes.unprofiled(worker)

    def profiles(self, worker_id: WorkerId) -> list[tuple[ProfileEntry, float | None]]:
        """Return the entries that jobs run with, by engine, and the observed paces."""
        worker = self.state.fleet.workers[worker_id]
        return [
            (estimates[0].entry, worker.observed.pace.get(engine))
            for engine in sorted(worker.engines)
            if (estimates := self.state.estimator.estimates(engine, worker))
        ]

    @property
    def stuck_s(self) -> float:
        """Time without progress, in addition to what is expected, that ejects a worker."""
        return self.state.settings.stuck_s

    def ejected(self, worker_id: WorkerId) -> bool:
        """Return whether a worker gets no assignments because it made no progress."""
        worker = self.state.fleet.workers.get(worker_id)
        return worker is not None and worker.ejected_until is not None

    def paused(self, worker_id: WorkerId) -> Mapping[Session, float]:
        """Return until when variants are not used on a worker, as they crashed."""
        worker = self.state.fleet.workers.get(worker_id)
        return {} if worker is None else worker.paused

    # --- events -------------------------------------------------------------------------

    def _of_worker(self, handle: Callable[[Any, WorkerRecord], None]) -> Callable[[Any], None]:
        """Return a handler of events of a worker, which change nothing once it has left."""

        def handle_event(event: Any) -> None:
            if worker := self.state.fleet.workers.get(event.worker_id):
                handle(event, worker)
                self._residency.changed()

        return handle_event

    def _joined(self, event: WorkerJoined) -> None:
        self._workers.add(event)
        self._outliers.joined(self.state.fleet.workers[event.worker.id])
        self._residency.changed()

    # Reports on an assignment that is not in flight change nothing.

    def _started(self, event: AssignmentStarted) -> None:
        lease = self._leases.by_id.get(event.assignment_id)
        if lease is not None and lease.first_query_at is None:
            worker = self._hear(lease)
            self._workers.add_session(worker, lease.session)
            self._leases.record_start(lease, event.setup_s)

    def _progressed(self, event: QueriesDone) -> None:
        if lease := self._leases.by_id.get(event.assignment_id):
            if event.done > lease.done:
                self._hear(lease, completed=True)
            new = self._leases.record_progress(lease, event.done, event.compute_s)
            if new and not lease.is_short_request:
                self._interleaver.progressed(lease, new)

    def _ended(self, event: AssignmentEnded) -> None:
        lease = self._leases.by_id.get(event.assignment_id)
        if lease is None:
            return
        done, stopped = max(event.done, lease.done), event.outcome is _STOPPED
        completed = event.outcome is _COMPLETED
        worker = self._hear(lease, completed=done > lease.done)
        lease.batch_size = event.batch
        new = self._leases.record_progress(lease, done, event.compute_s, final=True)
        if new and not lease.is_short_request:
            self._interleaver.progressed(lease, new)
        estimate = lease.estimate
        if lease.done and (estimate is None or estimate.is_rough or not lease.job.is_request):
            self._profiles.learn(lease)
        end: End = "stopped" if stopped else "completed" if completed else "failed"
        self._jobs.release(lease, end, event.detail)
        ejected = not lease.done and self._outliers.ended(worker, lease, event.fault)
        if not completed or lease.remaining:
            self._failures.ended(lease, event, charge_job=not ejected)

    def _check_progress(self, _event: ProgressChecked) -> None:
        self._outliers.check()
        self._exploration.check()

    def _hear(self, lease: Lease, *, completed: bool = False) -> WorkerRecord:
        """Note a sign of progress of a worker, and return the worker."""
        worker = self.state.fleet.workers[lease.assignment.worker_id]
        if not lease.assignment.concurrent:  # which shows nothing about the head
            worker.hear(self.state.now, completed=completed)
        if completed:
            if self._failures.counts:
                self._failures.completed(lease)
            if worker.observed.fruitless:
                worker.observed.fruitless.pop(lease.assignment.engine, None)
            worker.ejections = 0
            if worker.on_trial:
                worker.on_trial = False
                self.state.fleet.update_availability(worker, self.state.now)
        return worker


def _record_of(request: Job, sequence: int = 0) -> JobRecord:
    return JobRecord(request, sequence, Ranges(1), 1)
