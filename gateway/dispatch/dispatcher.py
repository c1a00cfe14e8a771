"""Driver of the scheduling core: feeds it events in real time and executes its commands.

Everything runs on the event loop's thread, in the order of the core's events. A report on a durable
job reaches the core only after the journal has recorded its results. A worker that joins or leaves,
which releases its leases, waits behind such reports, so that no query is dispatched again while its
result is being recorded.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.fleet.worker import (
    AssignmentProgress,
    ConnectedWorker,
    DropTensors,
    RunAssignment,
    StopAssignment,
)
from synergai.core.scheduling.events import (
    Assignment,
    AssignmentsRevoked,
    Command,
    Dispatch,
    Eject,
    Event,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    Learned,
    Load,
    Pause,
    ProgressChecked,
    Reject,
    Revoke,
    SessionDropped,
    Stop,
    TimePassed,
    Unload,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from synergai.core.scheduling.state.loads import preload_limit_s
from synergai.domain import AssignmentId, EngineName, Fault, Job, JobId, WorkerId
from synergai.jobs import JobState
from synergai.v1 import hub_pb2
from synergai.wire.converters import session_to_proto

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from gateway.dispatch.job_handler import JobHandler
    from gateway.journal.journal import Journal
    from synergai.core.pipeline import HeldTensors
    from synergai.core.scheduling.core import SchedulerCore
    from synergai.profiles.dictionary import ProfileEntry
    from synergai.runtime.clock import Clock

    Recorder = Callable[[Event, float, list[Command]], None]

_log = logging.getLogger(__name__)

_SUCCEEDED: Final = JobState.SUCCEEDED  # for the path of every request
_TIMER_RESOLUTION_S = 0.001
_RECORD_AFTER_S: Final = 0.1
_RECORDED_AT_ONCE: Final = 64
"""Events that are recorded together, or after a while, as no request waits for that."""
_CHECKS_OF_STUCK_S = 0.25
"""Interval of the checks for workers without progress, relative to the time they may take."""


class Dispatcher:
    """Driver of the scheduling core.

    Args:
        on_learned: called with each dictionary entry the core learns for an unprofiled engine.
        recorders: called with each event, its time and the core's commands, a little later: orders
            and responses come first.
        unloaded: engines that an operator has unloaded at any time; none of them is preloaded.

    Attributes:
        core: answers what it expects and knows; only the dispatcher passes it events.
        workers: those of the fleet by id, in the order they joined.
    """

    def __init__(
        self,
        core: SchedulerCore,
        journal: Journal,
        clock: Clock,
        *,
        on_learned: Callable[[ProfileEntry], None],
        recorders: Sequence[Recorder] = (),
        unloaded: Collection[EngineName] = (),
    ) -> None:
        self.core = core
        self._journal = journal
        self._clock = clock
        self._on_learned = on_learned
        self._recorders = recorders
        self._unrecorded: deque[tuple[Event, float, list[Command]]] = deque()
        self._recording: asyncio.Handle | None = None
        self._handlers: dict[JobId, JobHandler] = {}
        self.workers: dict[WorkerId, ConnectedWorker] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._deferred: deque[Event] = deque()
        self._check_s = core.stuck_s * _CHECKS_OF_STUCK_S
        self._progress_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.ejections = 0
        self.variant_crashes = 0
        self._unloaded = unloaded

    def close(self) -> None:
        """Stop scheduling: ignore all further events, including pending ones."""
        self._closed = True
        self.record()
        for timer in (self._timer, self._progress_timer):
            if timer is not None:
                timer.cancel()

    # --- jobs -------------------------------------------------------------------------------

    def submit(
        self, job: Job, handler: JobHandler, *, ready: int, done: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self._handlers[job.id] = handler
        self._handle(JobArrived(job, ready, done))

    def cancel(self, job_id: JobId) -> None:
        """Cancel a job before its next query; do nothing if it has ended."""
        self.flush()
        if job_id in self._handlers:
            self._end_job(job_id, JobState.CANCELLED, self._clock.now())
            self._handle(JobCancelled(job_id))

    def fail(self, job_id: JobId, reason: str, fault: Fault = Fault.UNSPECIFIED) -> None:
        """Fail a job and stop it before its next query; do nothing if it has ended."""
        self.flush()
        if job_id in self._handlers:
            self._end_job(job_id, JobState.FAILED, self._clock.now(), reason, fault)
            self._handle(JobCancelled(job_id))

    def suspend(self, job_id: JobId) -> None:
        """Withdraw a job before its next query, without telling its handler.

        Submit it again to continue, once it is no longer in flight.
        """
        self.flush()
        if self._handlers.pop(job_id, None) is not None:
            self._handle(JobCancelled(job_id))

    def drop(self, held: HeldTensors) -> None:
        """Let a worker drop tensors that are no longer needed."""
        if (worker := self.workers.get(held.worker_id)) is not None:
            worker.orders.put(DropTensors(held.token))

    def jobs_in_flight(self) -> set[JobId]:
        """Return the jobs that have an assignment on a worker."""
        return {
            progress.assignment.job_id
            for worker in self.workers.values()
            for progress in worker.in_flight.values()
        }

    def handler(self, job_id: JobId) -> JobHandler | None:
        return self._handlers.get(job_id)

    # --- workers ----------------------------------------------------------------------------

    def log_unprofiled(self, worker: ConnectedWorker, engines: Iterable[EngineName]) -> None:
        """Log which of `engines` will be measured, as they are unprofiled on the worker.

        Those that another worker of its class has were logged for that one: all share a profile.
        """
        if self.workers.get(worker.id) is not worker:
            return
        unprofiled = [each for each in engines if self.core.is_unprofiled(worker.id, each)]
        if not unprofiled:
            return
        known = {
            engine
            for other in self.workers.values()
            if other is not worker and other.worker_class == worker.worker_class
            for engine in other.usable_engines
        }
        if unprofiled := [engine for engine in unprofiled if engine not in known]:
            _log.info(
                "no profile on class %s for %s: measuring the first queries",
                worker.worker_class,
                ", ".join(unprofiled),
            )

    @property
    def busy(self) -> bool:
        """Whether a worker has an assignment."""
        return any(worker.in_flight for worker in self.workers.values())

    def add_worker(self, worker: ConnectedWorker) -> None:
        """Add a worker whose work stream is open to the fleet."""
        self._journal.after_pending(partial(self._join, worker))

    def remove_worker(self, worker: ConnectedWorker) -> None:
        """Remove a worker whose work stream is closed from the fleet."""
        self._journal.after_pending(partial(self._leave, worker))

    def revoke(self, worker: ConnectedWorker) -> None:
        """Take a worker's assignments back, and ignore its reports on them from now on."""
        worker.in_flight.clear()
        self.post(AssignmentsRevoked(worker.id), source=worker, after_pending=True)

    # --- events -----------------------------------------------------------------------------

    def post(
        self, event: Event, *, source: ConnectedWorker | None = None, after_pending: bool = False
    ) -> None:
        """Pass an event to the core and execute its commands.

        It is dropped unless its `source`, and no other connection under that id, is in the fleet.
        With `after_pending`, it waits for all pending writes of the journal first.
        """
        if source is not None and self.workers.get(source.id) is not source:
            return
        if after_pending:
            self._journal.after_pending(partial(self._handle, event))
        else:
            self._handle(event)

    def defer(self, event: Event) -> None:
        """Pass an event to the core once the responses at hand are sent, but before any other.

        A unary call sends its response at the end of this turn of the event loop, or in the next
        one, a stream in the one after that.
        """
        self._deferred.append(event)
        if len(self._deferred) == 1:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self.flush)

    def flush(self) -> None:
        """Pass the deferred events to the core now; one that fails is left to the event loop."""
        while self._deferred:
            try:
                self._handle_now(self._deferred.popleft())
            except Exception as error:  # noqa: BLE001 - a bug in one event must not keep others
                context = {"message": "an event of the scheduler failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    # --- internals --------------------------------------------------------------------------

    def _join(self, worker: ConnectedWorker) -> None:
        if worker.orders.closed:
            return
        self.workers[worker.id] = worker
        worker.free_since = self._clock.now()
        self._handle(WorkerJoined(worker.to_scheduling()))
        if worker.draining:
            self._handle(WorkerDraining(worker.id))
        self.log_unprofiled(worker, sorted(worker.usable_engines))

    def _leave(self, worker: ConnectedWorker) -> None:
        worker.in_flight.clear()
        if self.workers.get(worker.id) is worker:
            del self.workers[worker.id]
            self._handle(WorkerLeft(worker.id))

    def _handle(self, event: Event) -> None:
        if self._deferred:
            self.flush()
        self._handle_now(event)

    def _handle_now(self, event: Event) -> None:
        if self._closed:
            return
        now = self._clock.now()
        commands = self.core.handle(event, now)
        self._unrecorded.append((event, now, commands))
        for command in commands:
            self._execute(command, now)
        self._set_timer()
        if self._recording is None:
            loop = asyncio.get_running_loop()
            self._recording = loop.call_later(_RECORD_AFTER_S, self.record)
        elif len(self._unrecorded) == _RECORDED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self.record)

    def record(self) -> None:
        """Pass what was handled to the recorders now."""
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None
        while self._unrecorded:
            record = self._unrecorded.popleft()
            for recorder in self._recorders:
                recorder(*record)

    def _execute(self, command: Command, now: float) -> None:
        match command:
            case Dispatch(assignment):
                self._dispatch(assignment, now)
            case Finish(job_id):
                self._end_job(job_id, _SUCCEEDED, now)
            case Stop(assignment_id, worker_id, abort):
                worker = self.workers.get(worker_id)
                if worker is not None:
                    if (progress := worker.in_flight.get(assignment_id)) is not None:
                        progress.stopping = True
                    worker.orders.put(StopAssignment(assignment_id, abort))
            case Revoke(assignment_id, worker_id):
                self._revoke(assignment_id, worker_id)
            case Load():
                self._preload(command)
            case Unload(worker_id, session):
                if (worker := self.workers.get(worker_id)) is not None:
                    order = hub_pb2.UnloadEngine(session=session_to_proto(session))
                    worker.control.put(hub_pb2.GatewayControl(unload=order))
            case Eject(worker_id, pause_s, engine):
                self.ejections += 1
                _log.warning(
                    "worker %s makes no progress%s: nothing for %g s",
                    worker_id,
                    f" with {engine}" if engine else "",
                    pause_s,
                )
            case Pause(worker_id, session, pause_s):
                self.variant_crashes += 1
                _log.warning(
                    "worker %s: the engine host of %s crashed while it computed %s, which is "
                    "not used there for %g s",
                    worker_id,
                    session.engine,
                    session.configuration,
                    pause_s,
                )
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
        worker = self.workers.get(assignment.worker_id)
        if worker is None or worker.orders.closed:
            return
        handler = self._handlers[assignment.job_id]
        requests = () if handler.data is None else (handler.data,)
        holds = handler.holds_outputs and bool(worker.peer_address)
        worker.in_flight[assignment.id] = AssignmentProgress(assignment, now, holds)
        worker.orders.put(
            RunAssignment(assignment, requests, handler.inputs_follow, holds, handler.pull)
        )
        handler.on_dispatched(worker, assignment, now)
        if self._progress_timer is None:
            self._watch_progress()

    def _preload(self, load: Load) -> None:
        session = load.session
        worker = self.workers.get(load.worker_id)
        if worker is None:
            return
        if session.engine in self._unloaded:
            dropped = partial(self.post, SessionDropped(worker.id, session), source=worker)
            asyncio.get_running_loop().call_soon(dropped)
            return
        order = hub_pb2.LoadEngine(
            session=session_to_proto(session),
            preload=True,
            limit_s=preload_limit_s(load.estimate_s),
        )
        worker.control.put(hub_pb2.GatewayControl(load=order))

    def _revoke(self, assignment_id: AssignmentId, worker_id: WorkerId) -> None:
        """Stop an assignment that runs elsewhere from now on; its reports are stale."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.in_flight.pop(assignment_id, None)
            worker.orders.put(StopAssignment(assignment_id, abort=True))

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
        at = self.core.wakeup()
        if at is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        # The loop rounds to milliseconds; waking too early would only schedule another timer.
        delay = max(0.0, at - self._clock.now()) + _TIMER_RESOLUTION_S
        self._timer = asyncio.get_running_loop().call_later(delay, self._timer_fired)

    def _watch_progress(self) -> None:
        """Let the core look for workers without progress while assignments are in flight."""
        if math.isfinite(self._check_s):
            loop = asyncio.get_running_loop()
            self._progress_timer = loop.call_later(self._check_s, self._progress_timer_fired)

    def _progress_timer_fired(self) -> None:
        self._journal.after_pending(self._check_progress)

    def _check_progress(self) -> None:
        self._progress_timer = None
        if self._closed:
            return
        self._handle(ProgressChecked())
        workers = self.workers.items()
        if any(worker.in_flight or self.core.ejected(name) for name, worker in workers):
            self._watch_progress()

    def _timer_fired(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        at = self.core.wakeup()
        if at is not None and at <= self._clock.now():
            self._handle(TimePassed())
        else:
            self._set_timer()
