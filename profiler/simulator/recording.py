"""Reading a gateway's event log."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiler.simulator.replay import recorded_settings, replay
from profiler.simulator.virtual_worker import BusySpan
from synergai.core.scheduling.events import (
    AssignmentEnded,
    AssignmentsRevoked,
    AssignmentStarted,
    Dispatch,
    Expire,
    Fail,
    Finish,
    JobArrived,
    JobCancelled,
    QueriesDone,
    Reject,
    Revoke,
    WorkerJoined,
    WorkerLeft,
)

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.simulator.replay import ReplayStep
    from synergai.core.scheduling.events import Assignment
    from synergai.domain import Job, JobId, WorkerClass, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLog:
    """Events of a gateway, from its event log; times are in its monotonic seconds.

    Attributes:
        jobs: jobs and requests in order of arrival, without cancelled ones.
        spans: every assignment of theirs as executed.
        finished: completion times; rejected, failed and expired jobs are missing.
        failed: the rejected, failed and expired jobs.
        decisions_s: CPU seconds of each decision, when the events were replayed.
        ended: time of the last event.
        mismatches: number of events after which the replayed commands differ.
    """

    policy: str
    jobs: tuple[Job, ...]
    spans: tuple[BusySpan, ...]
    finished: dict[JobId, float]
    failed: frozenset[JobId]
    decisions_s: tuple[float, ...]
    classes: dict[WorkerId, WorkerClass]
    ended: float
    events: int
    mismatches: int


def read_log(path: Path) -> GatewayLog:
    """Read and replay an event log."""
    steps = list(replay(path, time.thread_time))
    reader = _Reader()
    for step in steps:
        reader.read(step)
    return GatewayLog(
        policy=recorded_settings(path).policy,
        jobs=tuple(reader.jobs.values()),
        spans=tuple(span for span in reader.spans if span.job_id in reader.jobs),
        finished=reader.finished,
        failed=frozenset(reader.failed),
        decisions_s=tuple(
            step.decision_s
            for step in steps
            if not isinstance(step.event, QueriesDone | WorkerJoined)
        ),
        classes=reader.classes,
        ended=steps[-1].at if steps else 0.0,
        events=len(steps),
        mismatches=sum(step.recorded != step.replayed for step in steps),
    )


@dataclass(slots=True)
class _InFlight:
    """An assignment on a worker; `started` is None while it waits behind others."""

    assignment: Assignment
    started: float | None = None
    ready: float | None = None
    done: int = 0


@dataclass(slots=True)
class _Reader:
    """Reconstructs jobs and spans from the events."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    finished: dict[JobId, float] = field(default_factory=dict)
    failed: set[JobId] = field(default_factory=set)
    spans: list[BusySpan] = field(default_factory=list)
    classes: dict[WorkerId, WorkerClass] = field(default_factory=dict)
    queues: dict[WorkerId, deque[_InFlight]] = field(default_factory=dict)

    def read(self, step: ReplayStep) -> None:
        """Process the next step."""
        match step.event:
            case JobArrived(job):
                self.jobs[job.id] = job
            case JobCancelled(job_id):
                self.jobs.pop(job_id, None)
            case WorkerJoined(worker):
                self._leave(worker.id, step.at)
                self.classes[worker.id] = worker.worker_class
            case WorkerLeft(worker_id) | AssignmentsRevoked(worker_id):
                self._leave(worker_id, step.at)
            case AssignmentStarted(assignment_id):
                if (running := self._find(assignment_id)) is not None:
                    running.ready = step.at
            case QueriesDone(assignment_id, done):
                if (running := self._find(assignment_id)) is not None:
                    running.done = done
            case AssignmentEnded(assignment_id, done):
                if (running := self._find(assignment_id)) is not None:
                    running.done = done
                    self._end(running, step.at)
        for command in step.recorded:
            match command:
                case Dispatch(assignment):
                    queue = self.queues.setdefault(assignment.worker_id, deque())
                    queue.append(_InFlight(assignment, None if queue else step.at))
                case Revoke(assignment_id):
                    if (running := self._find(assignment_id)) is not None:
                        self._end(running, step.at)
                case Finish(job_id):
                    self.finished[job_id] = step.at
                case Reject(job_id) | Fail(job_id) | Expire(job_id):
                    self.failed.add(job_id)

    def _find(self, assignment_id: int) -> _InFlight | None:
        for queue in self.queues.values():
            for running in queue:
                if running.assignment.id == assignment_id:
                    return running
        return None

    def _leave(self, worker_id: WorkerId, now: float) -> None:
        """End what the worker was running when it was lost."""
        for running in list(self.queues.get(worker_id, ())):
            self._end(running, now)

    def _end(self, running: _InFlight, now: float) -> None:
        assignment = running.assignment
        queue = self.queues[assignment.worker_id]
        queue.remove(running)
        if queue and queue[0].started is None:
            queue[0].started = now
        if running.started is None:  # stopped before the worker reached it
            return
        ready = running.ready
        if ready is None:
            ready = running.started if running.done else now
        self.spans.append(
            BusySpan(
                worker_id=assignment.worker_id,
                job_id=assignment.job_id,
                engine=assignment.engine,
                configuration=assignment.configuration,
                first=assignment.first,
                done=running.done,
                started=running.started,
                ready=ready,
                ended=now,
            )
        )
