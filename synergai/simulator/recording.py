"""Reading a gateway's event log as if it were a simulated run."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from synergai.scheduling.event_log import replay
from synergai.scheduling.events import (
    AssignmentEnded,
    AssignmentStarted,
    Dispatch,
    Finish,
    JobArrived,
    QueriesDone,
    WorkerJoined,
)
from synergai.simulator.simulation import Run
from synergai.simulator.virtual_worker import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from synergai.domain import Job, JobId, WorkerId
    from synergai.scheduling.event_log import ReplayStep
    from synergai.scheduling.events import Assignment
    from synergai.simulator.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A live run.

    Attributes:
        run: in profiled time, aligned with the workload at the first arrival.
        events: number of recorded events.
        mismatches: number of events after which the replayed commands differ.
    """

    run: Run
    events: int
    mismatches: int


def read_recording(
    path: Path, workload: Workload, policy: str, scale: float, jobs: Mapping[str, Job]
) -> Recording:
    """Read and replay an event log.

    Args:
        path: the log.
        workload: the workload that ran.
        policy: its scheduling policy.
        scale: speedup over profiled times.
        jobs: the workload's jobs by gateway job id.

    Raises:
        InvalidInput: the file is not an event log of this version.
    """
    steps = list(replay(path, time.thread_time))
    reader = _Reader(workload, scale, jobs)
    reader.read(steps)
    return Recording(
        run=Run(
            workload=replace(workload, jobs=tuple(reader.arrived.values())),
            policy=policy,
            spans=tuple(reader.spans),
            finished=reader.finished,
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


@dataclass(slots=True)
class _Reader:
    """Reconstructs jobs and spans from the events."""

    workload: Workload
    scale: float
    jobs: Mapping[str, Job]
    origin: float | None = None
    arrived: dict[JobId, Job] = field(default_factory=dict)
    finished: dict[JobId, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    queues: dict[WorkerId, deque[_InFlight]] = field(default_factory=dict)

    def read(self, steps: Iterable[ReplayStep]) -> None:
        """Process all steps in order."""
        for step in steps:
            match step.event:
                case JobArrived(job):
                    self._add_job(job)
                case AssignmentStarted(assignment_id):
                    if (running := self._find(assignment_id)) is not None:
                        running.ready = self._profile_time(step.at)
                case AssignmentEnded():
                    self._end_assignment(step.event, self._profile_time(step.at))
            for command in step.recorded:
                match command:
                    case Dispatch(assignment):
                        self._dispatch(assignment, self._profile_time(step.at))
                    case Finish(job_id):
                        self.finished[self.jobs[job_id].id] = self._profile_time(step.at)

    def _profile_time(self, at: float) -> float:
        """Convert gateway time to profiled time; the first arrival is the common origin."""
        origin = at if self.origin is None else self.origin
        return self.workload.jobs[0].arrival + (at - origin) * self.scale

    def _add_job(self, live: Job) -> None:
        if self.origin is None:
            self.origin = live.arrival
        job = self.jobs[live.id]
        self.arrived[job.id] = structs.replace(
            job,
            arrival=self._profile_time(live.arrival),
            deadline=self._profile_time(live.deadline),
        )

    def _dispatch(self, assignment: Assignment, now: float) -> None:
        queue = self.queues.setdefault(assignment.worker_id, deque())
        queue.append(_InFlight(assignment, None if queue else now))

    def _find(self, assignment_id: int) -> _InFlight | None:
        for queue in self.queues.values():
            for running in queue:
                if running.assignment.id == assignment_id:
                    return running
        return None

    def _end_assignment(self, event: AssignmentEnded, now: float) -> None:
        running = self._find(event.assignment_id)
        if running is None:
            return
        assignment = running.assignment
        queue = self.queues[assignment.worker_id]
        queue.remove(running)
        if queue and queue[0].started is None:
            queue[0].started = now
        if running.started is None:  # stopped before the worker reached it
            return
        ready = running.ready
        if ready is None:
            ready = running.started if event.done else now
        self.spans.append(
            Span(
                worker_id=assignment.worker_id,
                job_id=self.jobs[assignment.job_id].id,
                engine=assignment.engine,
                configuration=assignment.configuration,
                first=assignment.first,
                done=event.done,
                started=running.started,
                ready=ready,
                ended=now,
            )
        )
