"""A worker in virtual time: runs assignments in order, and can stop between two queries."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.domain import Outcome, Session
from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Event,
    QueriesDone,
    SessionLoaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from synergai.domain import AssignmentId, Configuration, EngineName, Job, JobId, WorkerId
    from synergai.scheduling.events import Assignment, Worker
    from synergai.simulator.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An assignment as it really ran.

    Attributes:
        first: the first of its queries.
        done: how many were run.
        began: when the worker turned to it.
        ready: when its setup was over; `began` if there was none to pay.
        ended: when the worker was through with it.
    """

    worker_id: WorkerId
    job_id: JobId
    engine: EngineName
    configuration: Configuration
    first: int
    done: int
    began: float
    ready: float
    ended: float


@dataclass(slots=True)
class _Current:
    assignment: Assignment
    job: Job
    began: float
    ready: float
    per_query_s: float
    stop_after: int

    def done_by(self, now: float) -> int:
        """Queries that are over at `now`."""
        # A hair's breadth, lest a query that ends at this very instant be rounded away.
        return max(0, min(self.stop_after, int((now - self.ready) / self.per_query_s + 1e-9)))


class Machine:
    """One worker.

    Args:
        worker: as the scheduler knows it.
        workload: says how long things really take.
        jobs: the workload's jobs by id.
        report_s: how often it reports progress.
        at: calls back at an instant: ``at(instant, function)``.
        tell: tells the scheduler.
    """

    def __init__(
        self,
        worker: Worker,
        workload: Workload,
        jobs: Mapping[JobId, Job],
        report_s: float,
        at: Callable[[float, Callable[[float], None]], None],
        tell: Callable[[Event], None],
    ) -> None:
        self.worker = worker
        self.spans: list[Span] = []
        self._workload = workload
        self._jobs = jobs
        self._report_s = report_s
        self._at = at
        self._tell = tell
        self._queue: deque[Assignment] = deque()
        self._current: _Current | None = None
        self._sessions = set(worker.sessions)

    def dispatch(self, assignment: Assignment, now: float) -> None:
        """Take an assignment; it is begun when those before it are over."""
        self._queue.append(assignment)
        if self._current is None:
            self._begin(now)

    def stop(self, assignment_id: AssignmentId, now: float) -> None:
        """Stop an assignment at its next query, or at once if it has not come to its first."""
        current = self._current
        if current is None or current.assignment.id != assignment_id:
            before = len(self._queue)
            self._queue = deque(a for a in self._queue if a.id != assignment_id)
            if len(self._queue) < before:
                ended = AssignmentEnded(assignment_id, 0, Outcome.STOPPED)
                self._at(now, lambda _: self._tell(ended))
            return
        if now < current.ready:
            # What was paid so far is lost.
            current.stop_after = 0
            current.ready = now
        else:
            current.stop_after = min(current.stop_after, current.done_by(now) + 1)
        self._expect_end(current)

    def _begin(self, now: float) -> None:
        if not self._queue:
            return
        assignment = self._queue.popleft()
        name = self.worker.worker_class
        job = self._jobs[assignment.job_id]
        configuration = assignment.configuration
        setup_s = 0.0
        if not self._is_set_up(assignment, now):
            setup_s = self._workload.setup_s(job, name, configuration, assignment.count)
        current = self._current = _Current(
            assignment,
            job,
            now,
            now + setup_s,
            self._workload.per_query_s(job, name, configuration),
            assignment.count,
        )
        self._at(current.ready, lambda _: self._started(current))
        self._expect_end(current)

    def _is_set_up(self, assignment: Assignment, now: float) -> bool:
        """Whether the first query can run at once."""
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

    def _started(self, current: _Current) -> None:
        if self._current is not current or current.stop_after == 0:
            return
        assignment = current.assignment
        setup_s = current.ready - current.began
        session = Session(assignment.engine, assignment.configuration)
        if self.worker.keeps_sessions and session not in self._sessions:
            self._sessions.add(session)
            self._tell(SessionLoaded(self.worker.id, session, setup_s))
        self._tell(AssignmentStarted(assignment.id, setup_s))
        self._at(current.ready + self._report_s, lambda now: self._report(current, now))

    def _report(self, current: _Current, now: float) -> None:
        if self._current is not current:
            return
        if done := current.done_by(now):
            self._tell(QueriesDone(current.assignment.id, done))
        self._at(now + self._report_s, lambda later: self._report(current, later))

    def _expect_end(self, current: _Current) -> None:
        expected = current.stop_after
        ends_at = current.ready + expected * current.per_query_s
        self._at(ends_at, lambda now: self._end(current, expected, now))

    def _end(self, current: _Current, expected: int, now: float) -> None:
        if self._current is not current or current.stop_after != expected:
            return
        assignment = current.assignment
        self.spans.append(
            Span(
                worker_id=self.worker.id,
                job_id=assignment.job_id,
                engine=assignment.engine,
                configuration=assignment.configuration,
                first=assignment.first,
                done=expected,
                began=current.began,
                ready=current.ready,
                ended=now,
            )
        )
        self._current = None
        whole = expected == assignment.count
        outcome = Outcome.COMPLETED if whole else Outcome.STOPPED
        self._begin(now)
        self._tell(AssignmentEnded(assignment.id, expected, outcome))
