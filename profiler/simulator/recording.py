"""Event logs of gateways: read, and replayed by a new core."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from profiler.simulator.virtual_worker import BusySpan
from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import FORMAT
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
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TextIO

    from synergai.core.scheduling.events import Assignment, Command, Event
    from synergai.domain import Job, JobId, WorkerClass, WorkerId


_CLASSES: Final = {
    cls.__name__: cls for base in (events.Event, events.Command) for cls in base.__subclasses__()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """A recorded event handled again by a new core; `decision_s` is the CPU time of that."""

    at: float
    event: Event
    recorded: list[Command]
    replayed: list[Command]
    decision_s: float


def replay(path: Path, cpu_clock: Callable[[], float]) -> Iterator[ReplayStep]:
    """Feed the recorded events to a new core, without a last line that was cut off.

    `cpu_clock` returns CPU seconds; it is read before and after each event.
    """
    with _opened(path) as lines:
        head = _head(path, next(lines, ""))
        core = SchedulerCore(
            _decode_settings(path, head.settings),
            ConfigurationDictionary(head.dictionary),
            head.epoch,
        )
        for event, at, recorded in _steps(path, lines):
            began = cpu_clock()
            commands = core.handle(event, at)
            yield ReplayStep(
                at=at,
                event=event,
                recorded=recorded,
                replayed=commands,
                decision_s=cpu_clock() - began,
            )


def recorded_steps(path: Path) -> Iterator[tuple[Event, float, list[Command]]]:
    """Yield each recorded event, its time and its commands, without a last line cut off."""
    with _opened(path) as lines:
        _head(path, next(lines, ""))
        yield from _steps(path, lines)


def _steps(path: Path, lines: TextIO) -> Iterator[tuple[Event, float, list[Command]]]:
    for number, line in enumerate(lines, 2):
        if not line.endswith("\n"):
            break  # cut off when the gateway was killed
        yield _decode_step(line, f"{path}, line {number}")


def _decode_step(line: str, where: str) -> tuple[Event, float, list[Command]]:
    """Return the event of a line, its time, and the commands that it led to."""
    try:
        document = json.loads(line)
        commands = [_decode_tagged(command) for command in document["commands"]]
        event, at = _decode_tagged(document["event"]), msgspec.convert(document["at"], float)
    # ValidationError of msgspec is a ValueError.
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidInput(f"{where}: not an event of this version") from None
    if not math.isfinite(at):
        raise InvalidInput(f"{where}: the time must be a finite number, not {at}")
    return event, at, commands


def recorded_settings(path: Path) -> SchedulingSettings:
    """Return the settings of the core that an event log is of."""
    with _opened(path) as lines:
        return _decode_settings(path, _head(path, next(lines, "")).settings)


class _Head(msgspec.Struct):
    """The first line of an event log."""

    format: Literal[1]
    epoch: int
    settings: dict[str, Any]
    dictionary: list[ProfileEntry]


def _opened(path: Path) -> TextIO:
    # Bytes that are no text are in a name, or make their line invalid.
    return path.open(encoding="utf-8", errors="replace")


def _head(path: Path, line: str) -> _Head:
    try:
        return msgspec.convert(json.loads(line), _Head)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: not an event log of version {FORMAT}: {error}") from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path}: not an event log") from None


def _decode_settings(path: Path, fields: dict[str, Any]) -> SchedulingSettings:
    try:
        return msgspec.convert(fields, SchedulingSettings)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path}: invalid settings: {error}") from None


def _decode_tagged(value: list[Any]) -> Any:
    name, fields = value
    return msgspec.convert(fields, _CLASSES[name])


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
