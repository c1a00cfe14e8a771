"""What happened in a real gateway, read from its event log as if it were a simulation."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

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
        run: in the profile's time, the first job arriving when it does in the workload.
        events: how many the scheduler was told.
        mismatches: after how many of them a new core, told the same, says something else.
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
        workload: what was run.
        policy: what scheduled it.
        scale: how many times faster than the profile it went.
        jobs: the workload's jobs by the ids that the gateway gave them.

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
class _Running:
    """An assignment that a worker has; `began` is None until it turns to it."""

    assignment: Assignment
    began: float | None = None
    ready: float | None = None


@dataclass(slots=True)
class _Reader:
    workload: Workload
    scale: float
    jobs: Mapping[str, Job]
    origin: float | None = None
    arrived: dict[JobId, Job] = field(default_factory=dict)
    finished: dict[JobId, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    given: dict[WorkerId, deque[_Running]] = field(default_factory=dict)

    def read(self, steps: Iterable[ReplayStep]) -> None:
        """Take in all steps, in order."""
        for step in steps:
            match step.event:
                case JobArrived(job):
                    self._arrive(job)
                case AssignmentStarted(assignment_id):
                    if (running := self._running(assignment_id)) is not None:
                        running.ready = self._time(step.at)
                case AssignmentEnded():
                    self._end(step.event, self._time(step.at))
            for command in step.recorded:
                match command:
                    case Dispatch(assignment):
                        self._give(assignment, self._time(step.at))
                    case Finish(job_id):
                        self.finished[self.jobs[job_id].id] = self._time(step.at)

    def _time(self, at: float) -> float:
        """The gateway's time in the profile's; jobs come before all that matters."""
        origin = at if self.origin is None else self.origin
        return self.workload.jobs[0].arrival + (at - origin) * self.scale

    def _arrive(self, live: Job) -> None:
        if self.origin is None:
            self.origin = live.arrival
        job = self.jobs[live.id]
        self.arrived[job.id] = replace(
            job, arrival=self._time(live.arrival), deadline=self._time(live.deadline)
        )

    def _give(self, assignment: Assignment, now: float) -> None:
        queue = self.given.setdefault(assignment.worker_id, deque())
        queue.append(_Running(assignment, None if queue else now))

    def _running(self, assignment_id: int) -> _Running | None:
        for queue in self.given.values():
            for running in queue:
                if running.assignment.id == assignment_id:
                    return running
        return None

    def _end(self, event: AssignmentEnded, now: float) -> None:
        running = self._running(event.assignment_id)
        if running is None:
            return
        assignment = running.assignment
        queue = self.given[assignment.worker_id]
        queue.remove(running)
        if queue and queue[0].began is None:
            queue[0].began = now
        if running.began is None:  # it was taken back before the worker came to it
            return
        ready = running.ready
        if ready is None:
            ready = running.began if event.done else now
        self.spans.append(
            Span(
                worker_id=assignment.worker_id,
                job_id=self.jobs[assignment.job_id].id,
                engine=assignment.engine,
                configuration=assignment.configuration,
                first=assignment.first,
                done=event.done,
                began=running.began,
                ready=ready,
                ended=now,
            )
        )
