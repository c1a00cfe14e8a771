"""A gateway's event log as if it were a simulated run."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from profiler.simulator.recording import replay
from profiler.simulator.simulation import SimulationRun
from profiler.simulator.virtual_worker import BusySpan
from synergai.core.scheduling.events import (
    AssignmentEnded,
    AssignmentsRevoked,
    AssignmentStarted,
    Dispatch,
    Finish,
    JobArrived,
    JobCancelled,
    QueriesDone,
    Revoke,
    WorkerJoined,
    WorkerLeft,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from profiler.simulator.recording import ReplayStep
    from profiler.simulator.workload import Workload
    from synergai.core.scheduling.events import Assignment
    from synergai.domain import Job, JobId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A live run.

    Attributes:
        run: in profiled time, aligned with the workload at the first arrival.
        mismatches: number of events after which the replayed commands differ.
    """

    run: SimulationRun
    events: int
    mismatches: int


def read_recording(
    path: Path, workload: Workload, policy: str, scale: float, jobs: Mapping[str, Job]
) -> Recording:
    """Read and replay the event log of a workload."""
    steps = list(replay(path, time.thread_time))
    log = LogReader()
    for step in steps:
        log.read(step)
    live_jobs = list(log.jobs.values())
    origin = live_jobs[0].arrival if live_jobs else 0.0

    def profile_time(at: float) -> float:
        """Convert gateway time to profiled time; the first arrival is the common origin."""
        return workload.jobs[0].arrival + (at - origin) * scale

    return Recording(
        run=SimulationRun(
            workload=replace(
                workload,
                jobs=tuple(
                    structs.replace(
                        jobs[live.id],
                        arrival=profile_time(live.arrival),
                        deadline=profile_time(live.deadline),
                    )
                    for live in live_jobs
                ),
            ),
            policy=policy,
            spans=tuple(
                replace(
                    span,
                    job_id=jobs[span.job_id].id,
                    started=profile_time(span.started),
                    ready=profile_time(span.ready),
                    ended=profile_time(span.ended),
                )
                for span in log.spans
                if span.job_id in log.jobs
            ),
            finished={jobs[job_id].id: profile_time(at) for job_id, at in log.finished.items()},
            decisions_s=tuple(
                step.decision_s
                for step in steps
                if not isinstance(step.event, QueriesDone | WorkerJoined)
            ),
        ),
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
class LogReader:
    """Reconstructs jobs and spans from the events of a gateway.

    Attributes:
        jobs: in order of arrival, without cancelled ones.
        finished: completion times; jobs that did not finish are missing.
        spans: every assignment as executed.
    """

    jobs: dict[JobId, Job] = field(default_factory=dict)
    finished: dict[JobId, float] = field(default_factory=dict)
    spans: list[BusySpan] = field(default_factory=list)
    queues: dict[WorkerId, deque[_InFlight]] = field(default_factory=dict)

    def read(self, step: ReplayStep) -> None:
        match step.event:
            case JobArrived(job):
                self.jobs[job.id] = job
            case JobCancelled(job_id):
                self.jobs.pop(job_id, None)
            case WorkerJoined(worker):
                self._leave(worker.id, step.at)
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
