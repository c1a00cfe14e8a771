"""Driver of the scheduling core: feeds it events in real time and executes its commands.

Everything runs on the event loop's thread, in the order of the core's events. A worker's report
on a durable job reaches the core only after the journal has recorded it. Events that release a
worker's leases wait behind such reports, so that no query is dispatched again while its result is
being recorded.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

from gateway.dispatch.reports import apply_progress
from gateway.fleet.agent_validation import ProtocolViolation, checked_seconds, printable_detail
from gateway.fleet.worker import AssignmentProgress, RunAssignment, StopAssignment
from synergai.domain import AssignmentId, Fault, JobState, Outcome
from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Dispatch,
    EnginesChanged,
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
    SessionDropped,
    SessionLoaded,
    Stop,
    TimePassed,
    Worker,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.clock import Clock
    from gateway.dispatch.job_handler import JobHandler
    from gateway.fleet.worker import ConnectedWorker
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import EngineName, Job, JobId, Session, WorkerId
    from synergai.profiles.dictionary import ProfileEntry
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.core import SchedulerCore
    from synergai.scheduling.events import Assignment, Command, Event
    from synergai.v1 import hub_pb2

_log = logging.getLogger(__name__)

_TIMER_RESOLUTION_S = 0.001


class Journal(Protocol):
    """Orders the core's events behind the writes they depend on."""

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all pending writes are durable; at once if there are none."""


class EventRecorder(Protocol):
    """Recorder of the core's events and commands."""

    def record(self, event: Event, now: float, commands: list[Command]) -> None:
        """Record an event and the commands that the core returned for it."""


class Dispatcher:
    """Driver of the scheduling core.

    Args:
        core: the scheduling core.
        journal: durable storage that reports on durable jobs wait for.
        clock: source of the core's time.
        metrics: counters of queries and reports.
        on_learned: called with each dictionary entry the core learns for an unprofiled engine.
        recorder: receives every event with its commands.
    """

    def __init__(
        self,
        core: SchedulerCore,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        *,
        on_learned: Callable[[ProfileEntry], None],
        recorder: EventRecorder | None = None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._on_learned = on_learned
        self._recorder = recorder
        self._handlers: dict[JobId, JobHandler] = {}
        self._workers: dict[WorkerId, ConnectedWorker] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._closed = False

    def close(self) -> None:
        """Stop scheduling: ignore all further events, including pending ones."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --- jobs -------------------------------------------------------------------------------

    def submit(
        self, job: Job, handler: JobHandler, *, ready: int, done: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """Schedule a job.

        Args:
            job: the job to run.
            handler: called on everything that happens to the job.
            ready: number of leading queries that can run now.
            done: ranges ``[first, stop)`` of queries that are already recorded.
        """
        self._handlers[job.id] = handler
        self._handle(JobArrived(job, ready, done))

    def set_ready(self, job_id: JobId, ready: int) -> None:
        """Allow the first `ready` queries of a job to run; do nothing if it has ended."""
        if job_id in self._handlers:
            self._handle(QueriesReady(job_id, ready))

    def cancel(self, job_id: JobId) -> None:
        """Cancel a job before its next query; do nothing if it has ended."""
        if job_id in self._handlers:
            self._end_job(job_id, JobState.CANCELLED, self._clock.now())
            self._handle(JobCancelled(job_id))

    # --- workers ----------------------------------------------------------------------------

    def workers(self) -> Iterator[ConnectedWorker]:
        """Return the workers of the fleet, in the order they joined."""
        return iter(self._workers.values())

    def unprofiled(self, worker: ConnectedWorker) -> list[EngineName]:
        """Return the engines of a worker without a dictionary entry for its class."""
        return self._core.unprofiled(worker.id)

    @property
    def worker_count(self) -> int:
        """Number of workers in the fleet."""
        return len(self._workers)

    @property
    def queued(self) -> int:
        """Number of jobs and requests that wait for a worker."""
        return self._core.queued

    def add_worker(self, worker: ConnectedWorker) -> None:
        """Add a worker whose work stream is open to the fleet."""
        self._journal.after_pending(partial(self._join, worker))

    def remove_worker(self, worker: ConnectedWorker) -> None:
        """Remove a worker whose work stream is closed from the fleet."""
        self._journal.after_pending(partial(self._leave, worker))

    def draining(self, worker: ConnectedWorker) -> None:
        """Dispatch nothing further to a worker."""
        worker.draining = True
        if self._is_member(worker):
            self._handle(WorkerDraining(worker.id))

    def engines_changed(self, worker: ConnectedWorker) -> None:
        """Apply a change of a worker's usable engines."""
        if self._is_member(worker):
            self._handle(EnginesChanged(worker.id, worker.usable_engines))

    def session_loaded(self, worker: ConnectedWorker, session: Session, setup_s: float) -> None:
        """Record a session that became resident on a worker."""
        worker.sessions.add(session)
        if self._is_member(worker):
            self._handle(SessionLoaded(worker.id, session, setup_s))

    def session_dropped(self, worker: ConnectedWorker, session: Session) -> None:
        """Record a session that is no longer resident on a worker."""
        worker.sessions.discard(session)
        if self._is_member(worker):
            self._handle(SessionDropped(worker.id, session))

    def mode_changed(self, worker: ConnectedWorker, switch_s: float) -> None:
        """Apply a change of power mode; `switch_s` is 0 unless the agent switched for an order."""
        if self._is_member(worker):
            self._handle(ModeChanged(worker.id, worker.power.mode, switch_s))

    def profiled(self, entries: Iterable[ProfileEntry]) -> None:
        """Add entries to the configuration dictionary."""
        for entry in entries:
            self._handle(ProfileAdded(entry))

    # --- reports ----------------------------------------------------------------------------

    def started(self, worker: ConnectedWorker, report: hub_pb2.Started) -> None:
        """Apply the report that an assignment's setup is complete.

        Raises:
            ProtocolViolation: the setup time is impossible.
        """
        setup_s = checked_seconds(report.setup_s, "setup_s")
        if self._in_flight(worker, report.assignment_id) is not None:
            self._handle(AssignmentStarted(AssignmentId(report.assignment_id), setup_s))

    def progress(
        self, worker: ConnectedWorker, report: hub_pb2.Progress, responses: Sequence[Buffer] = ()
    ) -> None:
        """Apply a progress report, with the responses of its newly completed queries.

        Raises:
            ProtocolViolation: the report is impossible; the assignment has been failed.
        """
        progress = self._in_flight(worker, report.assignment_id)
        if progress is None:
            return
        handler = self._handlers.get(progress.assignment.job_id)
        self._apply_progress(worker, progress, report, responses, handler)
        done = QueriesDone(progress.assignment.id, progress.done, report.compute_s)
        self._handle_after_pending(done, handler)

    def ended(
        self, worker: ConnectedWorker, report: hub_pb2.Ended, responses: Sequence[Buffer] = ()
    ) -> None:
        """Apply the report that an assignment has ended, with its remaining responses.

        Raises:
            ProtocolViolation: the report is impossible; the assignment has been failed.
        """
        progress = self._in_flight(worker, report.progress.assignment_id)
        if progress is None:
            return
        assignment = progress.assignment
        handler = self._handlers.get(assignment.job_id)
        outcome = _OUTCOMES.get(report.outcome)
        done = report.progress.done
        if outcome is None or (outcome is Outcome.COMPLETED and done != assignment.count):
            text = f"assignment {assignment.id} cannot have this outcome after {done} queries"
            self._fail_for_violation(worker, progress, handler, ProtocolViolation(text))
        self._apply_progress(worker, progress, report.progress, responses, handler)
        del worker.in_flight[assignment.id]
        worker.free_since = self._clock.now()
        event = AssignmentEnded(
            assignment.id,
            progress.done,
            outcome,
            _FAULTS.get(report.fault, Fault.UNSPECIFIED),
            printable_detail(report.detail),
            progress.compute_s,
            progress.batch,
        )
        self._handle_after_pending(event, handler)

    # --- internals --------------------------------------------------------------------------

    def _in_flight(self, worker: ConnectedWorker, assignment_id: int) -> AssignmentProgress | None:
        progress = worker.in_flight.get(AssignmentId(assignment_id))
        if progress is None:
            self._metrics.stale_reports.inc()
        return progress

    def _apply_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        report: hub_pb2.Progress,
        responses: Sequence[Buffer],
        handler: JobHandler | None,
    ) -> None:
        with_tensors = None if handler is None else handler.with_tensors
        computed_s = progress.compute_s
        try:
            new = apply_progress(progress, report, responses, with_tensors=with_tensors)
        except ProtocolViolation as violation:
            self._fail_for_violation(worker, progress, handler, violation)
        if new:
            now = self._clock.now()
            worker.queries_done += new
            new_s = max(0.0, progress.compute_s - computed_s)
            metrics = self._metrics.engine(progress.assignment.engine)
            metrics.queries += new
            metrics.statistics.record_compute(new, new_s, now, progress.batch)
            worker.power.add_compute(progress.assignment.engine, new_s / progress.batch)
            if handler is not None:
                handler.on_progress(worker, progress, responses, now)

    def _fail_for_violation(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        handler: JobHandler | None,
        violation: ProtocolViolation,
    ) -> NoReturn:
        """Fail the assignment, so that a misbehaving worker cannot block a job forever."""
        del worker.in_flight[progress.assignment.id]
        failed = AssignmentEnded(
            progress.assignment.id,
            progress.done,
            Outcome.FAILED,
            Fault.HOST_DIED,
            f"worker {worker.id!r} broke the protocol: {violation}",
        )
        self._handle_after_pending(failed, handler)
        raise violation

    def _join(self, worker: ConnectedWorker) -> None:
        if worker.orders.closed:
            return
        self._workers[worker.id] = worker
        worker.free_since = self._clock.now()
        self._handle(
            WorkerJoined(
                Worker(
                    id=worker.id,
                    worker_class=worker.worker_class,
                    engines=worker.usable_engines,
                    configurations=worker.configurations,
                    sessions=frozenset(worker.sessions),
                    power_mode=worker.power.mode,
                )
            )
        )
        if worker.draining:
            self._handle(WorkerDraining(worker.id))
        if unprofiled := self.unprofiled(worker):
            _log.warning(
                "no profile on class %s for %s: measuring their first queries",
                worker.worker_class,
                ", ".join(unprofiled),
            )

    def _leave(self, worker: ConnectedWorker) -> None:
        worker.in_flight.clear()
        if self._is_member(worker):
            del self._workers[worker.id]
            self._handle(WorkerLeft(worker.id))

    def _is_member(self, worker: ConnectedWorker) -> bool:
        return self._workers.get(worker.id) is worker

    def _handle_after_pending(self, event: Event, handler: JobHandler | None) -> None:
        """Pass an event to the core, for a durable job only once its writes are durable."""
        if handler is not None and handler.durable:
            self._journal.after_pending(partial(self._handle, event))
        else:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if self._closed:
            return
        now = self._clock.now()
        commands = self._core.handle(event, now)
        if self._recorder is not None:
            self._recorder.record(event, now, commands)
        for command in commands:
            self._execute(command, now)
        self._set_timer()

    def _execute(self, command: Command, now: float) -> None:
        match command:
            case Dispatch(assignment):
                self._dispatch(assignment, now)
            case Finish(job_id):
                self._end_job(job_id, JobState.SUCCEEDED, now)
            case Stop(assignment_id, worker_id):
                worker = self._workers.get(worker_id)
                if worker is not None:
                    worker.orders.put(StopAssignment(assignment_id))
            case Expire(job_id):
                self._end_job(job_id, JobState.EXPIRED, now, "the deadline passed")
            case Fail(job_id, reason, fault):
                self._end_job(job_id, JobState.FAILED, now, reason, fault)
            case Reject(job_id, reason):
                self._end_job(job_id, JobState.REJECTED, now, reason)
            case Learned(entry):
                self._on_learned(entry)

    def _dispatch(self, assignment: Assignment, now: float) -> None:
        # A worker that is being removed gets nothing; the pending WorkerLeft event takes the
        # assignment back.
        worker = self._workers.get(assignment.worker_id)
        if worker is None or worker.orders.closed:
            return
        handler = self._handlers[assignment.job_id]
        requests = handler.requests(assignment.first, assignment.count)
        worker.in_flight[assignment.id] = AssignmentProgress(assignment, now)
        worker.orders.put(RunAssignment(assignment, requests))
        handler.on_dispatched(assignment, now)

    def _end_job(
        self,
        job_id: JobId,
        state: JobState,
        now: float,
        reason: str = "",
        fault: Fault = Fault.UNSPECIFIED,
    ) -> None:
        self._handlers.pop(job_id).on_ended(state, reason, fault, now)

    # --- time -------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Schedule the core's next wakeup.

        A timer that fires early is kept: rescheduling it on every event would cost more than an
        unnecessary wakeup.
        """
        at = self._core.wakeup()
        if at is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        # The loop rounds to milliseconds; waking too early would only schedule another timer.
        delay = max(0.0, at - self._clock.now()) + _TIMER_RESOLUTION_S
        self._timer = asyncio.get_running_loop().call_later(delay, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        at = self._core.wakeup()
        if at is not None and at <= self._clock.now():
            self._handle(TimePassed())
        else:
            self._set_timer()


_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_FAULTS = {fault.value: fault for fault in Fault}
