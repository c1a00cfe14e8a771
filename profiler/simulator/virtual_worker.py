"""A worker in virtual time: runs assignments in order and can stop between queries."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Event,
    QueriesDone,
    SessionDropped,
    SessionLoaded,
)
from synergai.domain import Outcome, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from profiler.simulator.workload import Workload
    from synergai.core.scheduling.events import Assignment, Worker
    from synergai.domain import AssignmentId, Configuration, EngineName, Job, JobId, WorkerId

REPORT_S: Final = 5.0
"""Interval of progress reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusySpan:
    """An assignment as executed.

    Attributes:
        done: number of queries that ran.
        started: when the worker started it.
        ready: when its setup was over; `started` if there was none.
        ended: when the worker finished or stopped it.
    """

    worker_id: WorkerId
    job_id: JobId
    engine: EngineName
    configuration: Configuration
    first: int
    done: int
    started: float
    ready: float
    ended: float


@dataclass(slots=True)
class _Running:
    """The assignment on the worker: in setup until `ready`, then running its queries.

    Attributes:
        started: when the worker started it.
        ready: when its first query runs.
        stop_after: number of queries after which it ends: all, fewer once it is stopped, or 0 if
            it is stopped during setup.
        aborted_at: when a query was aborted.
    """

    assignment: Assignment
    job: Job
    started: float
    ready: float
    per_query_s: float
    stop_after: int
    aborted_at: float | None = None

    @property
    def is_aborted(self) -> bool:
        """Whether it was stopped during setup."""
        return self.stop_after == 0

    @property
    def ends_at(self) -> float:
        """End of its last query, or when that was aborted."""
        if self.aborted_at is not None:
            return self.aborted_at
        return self.ready + self.stop_after * self.per_query_s

    def stop(self, now: float, *, abort: bool) -> None:
        """End after the current query or, during setup, at once; the setup paid so far is lost.

        An aborted query ends at once, too.
        """
        if now < self.ready:
            self.stop_after = 0
            self.ready = now
        elif not abort:
            self.stop_after = min(self.stop_after, self.done_by(now) + 1)
        elif (done := self.done_by(now)) < self.stop_after:
            self.stop_after, self.aborted_at = done, now

    def done_by(self, now: float) -> int:
        # Tolerance for rounding: a query that ends at this very instant counts.
        return max(0, min(self.stop_after, int((now - self.ready) / self.per_query_s + 1e-9)))


@dataclass(slots=True)
class Loaded:
    """A preload, as executed.

    Attributes:
        left_s: worker time that it still takes.
        parts: when it ran; in between, assignments did.
        since: when it last began or went on; None while assignments run.
    """

    worker_id: WorkerId
    session: Session
    left_s: float
    parts: list[tuple[float, float]] = field(default_factory=list)
    since: float | None = None

    @property
    def spent_s(self) -> float:
        """Worker time that it took so far."""
        return sum(ended - began for began, ended in self.parts)


@dataclass(frozen=True, slots=True)
class VirtualSessionChange:
    """A session that became resident, or was dropped.

    Attributes:
        load: the preload that made it so; None if an assignment did, or it was dropped.
    """

    at: float
    worker_id: WorkerId
    session: Session
    resident: bool
    load: Loaded | None = None


class VirtualWorker:
    """One simulated worker.

    Args:
        call_at: schedules a callback: ``call_at(instant, callback)``.
        notify: passes an event to the scheduler.
    """

    def __init__(
        self,
        worker: Worker,
        workload: Workload,
        jobs: Mapping[JobId, Job],
        call_at: Callable[[float, Callable[[float], None]], None],
        notify: Callable[[Event], None],
    ) -> None:
        self.worker = worker
        self.spans: list[BusySpan] = []
        self._workload = workload
        self._jobs = jobs
        self._call_at = call_at
        self._notify = notify
        self._queue: deque[Assignment] = deque()
        self._running: _Running | None = None
        self._sessions = set(worker.sessions)
        self.loads: list[Loaded] = []
        self.changes: list[VirtualSessionChange] = []
        self._loading: Loaded | None = None

    def dispatch(self, assignment: Assignment, now: float) -> None:
        """Queue an assignment; it starts when those before it are over."""
        self._queue.append(assignment)
        if self._running is None:
            self._start_next(now)

    def stop(self, assignment_id: AssignmentId, now: float, *, abort: bool = False) -> None:
        """Stop an assignment at its next query, at once before its first or if it is aborted."""
        running = self._running
        if running is None or running.assignment.id != assignment_id:
            before = len(self._queue)
            self._queue = deque(a for a in self._queue if a.id != assignment_id)
            if len(self._queue) < before:
                ended = AssignmentEnded(assignment_id, 0, Outcome.STOPPED)
                self._call_at(now, lambda _: self._notify(ended))
            return
        running.stop(now, abort=abort)
        self._schedule_end(running)

    def _start_next(self, now: float) -> None:
        if not self._queue:
            self._continue_loading(now)
            return
        self._pause_loading(now)
        assignment = self._queue.popleft()
        name = self.worker.worker_class
        job = self._jobs[assignment.job_id]
        configuration = assignment.configuration
        setup_s = 0.0
        if not self._is_set_up(assignment, now):
            setup_s = self._workload.setup_s(job, name, configuration, assignment.count)
            setup_s = self._take_over(assignment, setup_s)
        running = self._running = _Running(
            assignment,
            job,
            now,
            now + setup_s,
            self._workload.per_query_s(job, name, configuration),
            assignment.count,
        )
        self._call_at(running.ready, lambda _: self._setup_done(running))
        self._schedule_end(running)

    def _is_set_up(self, assignment: Assignment, now: float) -> bool:
        """Return whether the first query can run at once."""
        if self.worker.keeps_sessions:
            return Session(assignment.engine, assignment.configuration) in self._sessions
        before = self.spans[-1] if self.spans else None
        return (
            before is not None
            and before.ended == now
            and before.done > 0
            and before.job_id == assignment.job_id
            and before.configuration == assignment.configuration
        )

    # --- preloading ------------------------------------------------------------------

    def load(self, session: Session, now: float) -> None:
        """Load a session while no assignment runs."""
        name, configuration = self.worker.worker_class, session.configuration
        seconds = self._workload.load_s(session.engine, name, configuration)
        if self._loading is not None:  # which the scheduler has given up
            self._pause_loading(now)
        self._loading = Loaded(self.worker.id, session, seconds)
        self.loads.append(self._loading)
        if self._running is None:
            self._continue_loading(now)

    def unload(self, session: Session, now: float) -> None:
        """Drop a session, unless an assignment runs in it."""
        running = self._running
        if running is not None and session == _session(running.assignment):
            return
        self._sessions.discard(session)
        self.changes.append(VirtualSessionChange(now, self.worker.id, session, resident=False))
        self._notify(SessionDropped(self.worker.id, session))

    def _continue_loading(self, now: float) -> None:
        loading = self._loading
        if loading is not None and loading.since is None:
            loading.since = now
            self._call_at(now + loading.left_s, lambda at: self._load_done(loading, now, at))

    def _pause_loading(self, now: float) -> None:
        loading = self._loading
        if loading is not None and loading.since is not None:
            loading.left_s -= now - loading.since
            loading.parts.append((loading.since, now))
            loading.since = None

    def _load_done(self, loading: Loaded, since: float, now: float) -> None:
        if self._loading is not loading or loading.since != since:
            return
        self._pause_loading(now)
        self._loading = None
        self._add_session(loading.session, now, loading)
        self._notify(SessionLoaded(self.worker.id, loading.session, loading.spent_s))

    def _take_over(self, assignment: Assignment, setup_s: float) -> float:
        """Return the setup left of an assignment whose session is being preloaded."""
        loading = self._loading
        if loading is None or loading.session != _session(assignment):
            return setup_s
        self._loading = None
        return max(0.0, setup_s - loading.spent_s)

    def _add_session(self, session: Session, now: float, load: Loaded | None = None) -> None:
        self._sessions.add(session)
        self.changes.append(
            VirtualSessionChange(now, self.worker.id, session, resident=True, load=load)
        )

    def _setup_done(self, running: _Running) -> None:
        if self._running is not running or running.is_aborted:
            return
        assignment = running.assignment
        setup_s = running.ready - running.started
        session = Session(assignment.engine, assignment.configuration)
        if self.worker.keeps_sessions and session not in self._sessions:
            self._add_session(session, running.ready)
            self._notify(SessionLoaded(self.worker.id, session, setup_s))
        self._notify(AssignmentStarted(assignment.id, setup_s))
        self._call_at(running.ready + REPORT_S, lambda now: self._report(running, now))

    def _report(self, running: _Running, now: float) -> None:
        if self._running is not running:
            return
        if done := running.done_by(now):
            self._notify(QueriesDone(running.assignment.id, done))
        self._call_at(now + REPORT_S, lambda later: self._report(running, later))

    def _schedule_end(self, running: _Running) -> None:
        expected = running.stop_after
        self._call_at(running.ends_at, lambda now: self._finish(running, expected, now))

    def _finish(self, running: _Running, expected: int, now: float) -> None:
        if self._running is not running or running.stop_after != expected:
            return
        assignment = running.assignment
        self.spans.append(
            BusySpan(
                worker_id=self.worker.id,
                job_id=assignment.job_id,
                engine=assignment.engine,
                configuration=assignment.configuration,
                first=assignment.first,
                done=expected,
                started=running.started,
                ready=running.ready,
                ended=now,
            )
        )
        self._running = None
        whole = expected == assignment.count
        outcome = Outcome.COMPLETED if whole else Outcome.STOPPED
        self._start_next(now)
        self._notify(AssignmentEnded(assignment.id, expected, outcome))


def _session(assignment: Assignment) -> Session:
    return Session(assignment.engine, assignment.configuration)
