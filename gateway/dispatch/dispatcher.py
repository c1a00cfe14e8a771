"""Drives the scheduling core in real time and carries out what it decides.

Everything happens on the loop's thread and in the order in which the core is told. Whatever a
worker reports of a durable job reaches the core only when the journal has it; what ends a
worker's leases waits behind that, so that no query is given out again that is just being
recorded.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

from gateway.dispatch.reports import take_in
from gateway.fleet.agent_validation import ProtocolViolation, checked_seconds, shown
from gateway.fleet.worker import Halt, Outstanding, Run
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
    from gateway.dispatch.job_handler import Work
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
    """Orders what the core is told behind the writes that led to it."""

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all pending writes are durable; at once if there are none."""


class Recorder(Protocol):
    """Whoever wants to know what the core was told and what it answered."""

    def record(self, event: Event, now: float, commands: list[Command]) -> None:
        """Take note."""


class Dispatcher:
    """The core's driver.

    Args:
        core: decides.
        journal: what durable jobs wait for.
        clock: the time that the core is told.
        metrics: where queries are counted.
        learned: called with what the core learns of engines that had no profile.
        recorder: gets every event and its commands.
    """

    def __init__(
        self,
        core: SchedulerCore,
        journal: Journal,
        clock: Clock,
        metrics: Metrics,
        *,
        learned: Callable[[ProfileEntry], None],
        recorder: Recorder | None = None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._learned = learned
        self._recorder = recorder
        self._work: dict[JobId, Work] = {}
        self._workers: dict[WorkerId, ConnectedWorker] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._closed = False

    def close(self) -> None:
        """Decide nothing any more: what a worker or the journal still says comes too late."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --- work -------------------------------------------------------------------------------

    def start(
        self, job: Job, work: Work, *, ready: int, done: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """Have a job run.

        Args:
            job: what to run.
            work: who wants it; told of all that happens to it.
            ready: how many of its queries can be run now.
            done: ranges ``[first, stop)`` that are recorded already.
        """
        self._work[job.id] = work
        self._handle(JobArrived(job, ready, done))

    def more_ready(self, job_id: JobId, ready: int) -> None:
        """The first `ready` queries of a job can be run now."""
        if job_id in self._work:
            self._handle(QueriesReady(job_id, ready))

    def cancel(self, job_id: JobId) -> None:
        """Have a job stopped at its next query, unless it has ended."""
        if job_id in self._work:
            self._end_work(job_id, JobState.CANCELLED, self._clock.now())
            self._handle(JobCancelled(job_id))

    # --- workers ----------------------------------------------------------------------------

    def workers(self) -> Iterator[ConnectedWorker]:
        """Those that can be given work, in the order in which they joined."""
        return iter(self._workers.values())

    def unprofiled(self, worker: ConnectedWorker) -> list[EngineName]:
        """The engines of a joined worker that the dictionary lacks on its class."""
        return self._core.unprofiled(worker.id)

    @property
    def size(self) -> int:
        """How many workers can be given work."""
        return len(self._workers)

    @property
    def queued(self) -> int:
        """How many jobs and requests wait for a worker."""
        return self._core.queued

    def joined(self, worker: ConnectedWorker) -> None:
        """Take a worker, whose work stream is open, into the fleet."""
        self._journal.after_pending(partial(self._join, worker))

    def left(self, worker: ConnectedWorker) -> None:
        """Take a worker, whose work stream is closed, out of the fleet."""
        self._journal.after_pending(partial(self._leave, worker))

    def draining(self, worker: ConnectedWorker) -> None:
        """The worker wants nothing new."""
        worker.draining = True
        if self._is_member(worker):
            self._handle(WorkerDraining(worker.id))

    def engines_changed(self, worker: ConnectedWorker) -> None:
        """The worker's set of usable engines is another."""
        if self._is_member(worker):
            self._handle(EnginesChanged(worker.id, worker.usable_engines))

    def session_loaded(self, worker: ConnectedWorker, session: Session, setup_s: float) -> None:
        """An engine became resident on the worker."""
        worker.sessions.add(session)
        if self._is_member(worker):
            self._handle(SessionLoaded(worker.id, session, setup_s))

    def session_dropped(self, worker: ConnectedWorker, session: Session) -> None:
        """An engine is resident on the worker no more."""
        worker.sessions.discard(session)
        if self._is_member(worker):
            self._handle(SessionDropped(worker.id, session))

    def mode_changed(self, worker: ConnectedWorker, switch_s: float) -> None:
        """The worker is in another power mode; `switch_s` is 0 unless that was our doing."""
        if self._is_member(worker):
            self._handle(ModeChanged(worker.id, worker.power.mode, switch_s))

    def profiled(self, entries: Iterable[ProfileEntry]) -> None:
        """Add to the dictionary."""
        for entry in entries:
            self._handle(ProfileAdded(entry))

    # --- what workers report ------------------------------------------------------------------

    def started(self, worker: ConnectedWorker, report: hub_pb2.Started) -> None:
        """An assignment's setup is over.

        Raises:
            ProtocolViolation: the time is impossible.
        """
        setup_s = checked_seconds(report.setup_s, "setup_s")
        if self._outstanding(worker, report.assignment_id) is not None:
            self._handle(AssignmentStarted(AssignmentId(report.assignment_id), setup_s))

    def progress(
        self, worker: ConnectedWorker, report: hub_pb2.Progress, responses: Sequence[Buffer] = ()
    ) -> None:
        """Some queries of an assignment are done, with these responses if they have tensors.

        Raises:
            ProtocolViolation: the report cannot be true; the assignment has failed by it.
        """
        outstanding = self._outstanding(worker, report.assignment_id)
        if outstanding is None:
            return
        work = self._work.get(outstanding.assignment.job_id)
        self._take_in(worker, outstanding, report, responses, work)
        done = QueriesDone(outstanding.assignment.id, outstanding.done, report.compute_s)
        self._handle_in_order(done, work)

    def ended(
        self, worker: ConnectedWorker, report: hub_pb2.Ended, responses: Sequence[Buffer] = ()
    ) -> None:
        """An assignment is over; these are the responses that were still to come.

        Raises:
            ProtocolViolation: the report cannot be true; the assignment has failed by it.
        """
        progress = report.progress
        outstanding = self._outstanding(worker, progress.assignment_id)
        if outstanding is None:
            return
        assignment = outstanding.assignment
        work = self._work.get(assignment.job_id)
        outcome = _OUTCOMES.get(report.outcome)
        if outcome is None or (outcome is Outcome.COMPLETED and progress.done != assignment.count):
            text = f"assignment {assignment.id} cannot have ended so at {progress.done}"
            self._violate(worker, outstanding, work, ProtocolViolation(text))
        self._take_in(worker, outstanding, progress, responses, work)
        del worker.outstanding[assignment.id]
        worker.free_since = self._clock.now()
        event = AssignmentEnded(
            assignment.id,
            outstanding.done,
            outcome,
            _FAULTS.get(report.fault, Fault.UNSPECIFIED),
            shown(report.detail),
            outstanding.compute_s,
            outstanding.batch,
        )
        self._handle_in_order(event, work)

    # --- inside -------------------------------------------------------------------------------

    def _outstanding(self, worker: ConnectedWorker, assignment_id: int) -> Outstanding | None:
        outstanding = worker.outstanding.get(AssignmentId(assignment_id))
        if outstanding is None:
            self._metrics.stale_reports.inc()
        return outstanding

    def _take_in(
        self,
        worker: ConnectedWorker,
        outstanding: Outstanding,
        report: hub_pb2.Progress,
        responses: Sequence[Buffer],
        work: Work | None,
    ) -> None:
        with_tensors = None if work is None else work.with_tensors
        computed_s = outstanding.compute_s
        try:
            new = take_in(outstanding, report, responses, with_tensors=with_tensors)
        except ProtocolViolation as violation:
            self._violate(worker, outstanding, work, violation)
        if new:
            now = self._clock.now()
            worker.queries_done += new
            new_s = max(0.0, outstanding.compute_s - computed_s)
            metrics = self._metrics.engine(outstanding.assignment.engine)
            metrics.queries += new
            metrics.statistics.record_compute(new, new_s, now, outstanding.batch)
            worker.power.computed(outstanding.assignment.engine, new_s / outstanding.batch)
            if work is not None:
                work.recorded(worker, outstanding, responses, now)

    def _violate(
        self,
        worker: ConnectedWorker,
        outstanding: Outstanding,
        work: Work | None,
        violation: ProtocolViolation,
    ) -> NoReturn:
        """Have the assignment fail, lest a worker that goes on like this keeps a job for ever."""
        del worker.outstanding[outstanding.assignment.id]
        failed = AssignmentEnded(
            outstanding.assignment.id,
            outstanding.done,
            Outcome.FAILED,
            Fault.HOST_DIED,
            f"worker {worker.id!r} broke the protocol: {violation}",
        )
        self._handle_in_order(failed, work)
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
                "no profile on class %s for %s: their first queries will be measured",
                worker.worker_class,
                ", ".join(unprofiled),
            )

    def _leave(self, worker: ConnectedWorker) -> None:
        worker.outstanding.clear()
        if self._is_member(worker):
            del self._workers[worker.id]
            self._handle(WorkerLeft(worker.id))

    def _is_member(self, worker: ConnectedWorker) -> bool:
        return self._workers.get(worker.id) is worker

    def _handle_in_order(self, event: Event, work: Work | None) -> None:
        """Tell the core, but not before the journal has what led to it."""
        if work is not None and work.durable:
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
            self._carry_out(command, now)
        self._set_timer()

    def _carry_out(self, command: Command, now: float) -> None:
        match command:
            case Dispatch(assignment):
                self._dispatch(assignment, now)
            case Finish(job_id):
                self._end_work(job_id, JobState.SUCCEEDED, now)
            case Stop(assignment_id, worker_id):
                worker = self._workers.get(worker_id)
                if worker is not None:
                    worker.orders.put(Halt(assignment_id))
            case Expire(job_id):
                self._end_work(job_id, JobState.EXPIRED, now, "the deadline passed")
            case Fail(job_id, reason, fault):
                self._end_work(job_id, JobState.FAILED, now, reason, fault)
            case Reject(job_id, reason):
                self._end_work(job_id, JobState.REJECTED, now, reason)
            case Learned(entry):
                self._learned(entry)

    def _dispatch(self, assignment: Assignment, now: float) -> None:
        # A worker that is just being taken out is given nothing; its leaving, which the core
        # is about to be told, takes the assignment back.
        worker = self._workers.get(assignment.worker_id)
        if worker is None or worker.orders.closed:
            return
        work = self._work[assignment.job_id]
        worker.outstanding[assignment.id] = Outstanding(assignment, now)
        worker.orders.put(Run(assignment, work.requests(assignment.first, assignment.count)))
        work.dispatched(assignment, now)

    def _end_work(
        self,
        job_id: JobId,
        state: JobState,
        now: float,
        reason: str = "",
        fault: Fault = Fault.UNSPECIFIED,
    ) -> None:
        self._work.pop(job_id).ended(state, reason, fault, now)

    # --- time ---------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """See to it that the core gets to look at the time when it wants to.

        A timer that is early is left alone: moving it at every event would cost more than one
        look too many.
        """
        at = self._core.wakeup()
        if at is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        # The loop counts milliseconds and rounds; waking up too early would only ask for more.
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
