"""What is known of a job: immutable snapshots, and the tracker that they are taken from."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.jobs.completion_estimate import Outlook
from gateway.jobs.executions import Executions
from synergai.domain import JobState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gateway.clock import Clock
    from gateway.jobs.executions import Execution
    from synergai.domain import JobId, JobSpec
    from synergai.scheduling.events import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job at one moment. Instants are Unix times.

    Attributes:
        as_of: the moment.
        dispatched_at: when its first queries were given to a worker.
        estimated_s: from the first dispatch to completion, as estimated then.
        executions: who ran what, none overlaps another.
        reason: why it failed, was rejected or expired.
    """

    id: JobId
    spec: JobSpec
    state: JobState
    as_of: float = field(compare=False)
    submitted_at: float
    dispatched_at: float | None = None
    finished_at: float | None = None
    estimated_s: float | None = None
    executions: tuple[Execution, ...] = ()
    reason: str = ""

    @property
    def deadline_at(self) -> float:
        """When its QoS time is over; infinite if it has none."""
        return self.submitted_at + self.spec.qos

    @property
    def queries_done(self) -> int:
        """How many queries are recorded."""
        return sum(execution.count for execution in self.executions)

    @property
    def labelled(self) -> int:
        """How many recorded queries have a known label."""
        return sum(execution.labelled for execution in self.executions)

    @property
    def correct(self) -> int:
        """How many recorded queries were answered right."""
        return sum(execution.correct for execution in self.executions)

    @property
    def waited_s(self) -> float:
        """Until the first dispatch, or as long as there was none."""
        return (self.dispatched_at or self._until) - self.submitted_at

    @property
    def actual_s(self) -> float | None:
        """From the first dispatch to completion; None if it was not completed."""
        if self.state is not JobState.SUCCEEDED or self.dispatched_at is None:
            return None
        return self._until - self.dispatched_at

    @property
    def violated(self) -> bool:
        """It has missed its QoS, or cannot meet it any more."""
        if math.isinf(self.spec.qos):
            return False
        hopeless = self.state in (JobState.FAILED, JobState.REJECTED, JobState.EXPIRED)
        return hopeless or self._until > self.deadline_at

    @property
    def excess_s(self) -> float:
        """By how much it missed its QoS; 0 while it has not."""
        return max(0.0, self._until - self.deadline_at)

    @property
    def _until(self) -> float:
        return self.as_of if self.finished_at is None else self.finished_at


class JobTracker:
    """A job that has not ended, as its events come in.

    Args:
        status: what is known of it already.
        clock: the gateway's.

    Attributes:
        id: the job's.
        spec: what its client asked for.
        clock: as given.
    """

    def __init__(self, status: JobStatus, clock: Clock) -> None:
        self.id = status.id
        self.spec = status.spec
        self.clock = clock
        self._status = status
        self._is_behind = False
        self._executions = Executions(status.executions)
        self._outlook: tuple[float, Outlook] | None = None
        self._watchers: set[asyncio.Event] = set()

    @property
    def status(self) -> JobStatus:
        """The latest; its `as_of` is when it last changed."""
        if self._is_behind:
            # Put together when somebody looks: a job may be recorded far more often than seen.
            self._is_behind = False
            self._status = replace(self._status, executions=self._executions.ranges())
        return self._status

    def snapshot(self) -> JobStatus:
        """The job as it is now."""
        if self._status.state.ended:
            return self.status
        return replace(self.status, as_of=self.clock.unix(self.clock.now()))

    def dispatched(self, assignment: Assignment, now: float) -> bool:
        """Note an assignment; True if the first dispatch or the estimate was news."""
        status = self._status
        at = self.clock.unix(now)
        dispatched_at = at if status.dispatched_at is None else status.dispatched_at
        estimated_s = status.estimated_s
        if (seconds := self._first_estimate(assignment, now)) is not None:
            estimated_s = at - dispatched_at + seconds
        news = (dispatched_at, estimated_s) != (status.dispatched_at, status.estimated_s)
        if news or status.state is JobState.QUEUED:
            self._change(
                state=JobState.RUNNING, dispatched_at=dispatched_at, estimated_s=estimated_s
            )
        return news

    def recorded(self, assignment: Assignment, execution: Execution) -> None:
        """Put what is recorded of an assignment in place of what was before."""
        self._executions.record(assignment, execution)
        self._is_behind = True
        self._change()

    def end(self, state: JobState, now: float, reason: str = "") -> None:
        """Note the end; every watcher gets to see it, and nothing after it."""
        if not self._status.state.ended:
            self._change(state=state, finished_at=self.clock.unix(now), reason=reason)

    async def watch(self) -> AsyncGenerator[JobStatus, None]:
        """The job as it is, then again whenever it changed, until it has ended.

        Who reads slowly misses what came in between, never the latest.
        """
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while True:
                changed.clear()
                status = self.snapshot()
                yield status
                if status.state.ended:
                    return
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _first_estimate(self, assignment: Assignment, now: float) -> float | None:
        """What is left takes so long from `now`, if this is the instant to estimate it.

        It is that of the first dispatch for which an estimate exists; the queries that measure
        an unknown engine have none. All that is given out then counts.
        """
        if assignment.probe:
            return None
        if self._outlook is None or self._outlook[0] != now:
            if self._status.estimated_s is not None:
                return None
            self._outlook = now, Outlook(self.spec.queries - self._executions.queries)
        outlook = self._outlook[1]
        outlook.give(assignment)
        return outlook.seconds

    def _change(self, **changes: object) -> None:
        at = self.clock.unix(self.clock.now())
        self._status = replace(self._status, as_of=at, **changes)  # type: ignore[arg-type]  # the callers are in this class
        for watcher in self._watchers:
            watcher.set()
