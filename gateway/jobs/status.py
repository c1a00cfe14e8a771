"""Status of a job: immutable snapshots, and the tracker that produces them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gateway.jobs.completion_estimate import CompletionEstimate
from gateway.jobs.executions import Executions
from synergai.domain import JobState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gateway.jobs.executions import Execution
    from synergai.domain import JobId, JobSpec
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Snapshot of a job. Instants are Unix times.

    Attributes:
        as_of: time of the snapshot.
        dispatched_at: time of the first dispatch.
        estimated_s: seconds from the first dispatch to completion, as estimated then.
        executions: recorded queries per worker; the ranges do not overlap.
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
        """Unix time of the deadline; infinite without QoS."""
        return self.submitted_at + self.spec.qos

    @property
    def queries_done(self) -> int:
        """Number of recorded queries."""
        return sum(execution.count for execution in self.executions)

    @property
    def labelled(self) -> int:
        """Number of recorded queries with a known label."""
        return sum(execution.labelled for execution in self.executions)

    @property
    def correct(self) -> int:
        """Number of recorded queries that were answered correctly."""
        return sum(execution.correct for execution in self.executions)

    @property
    def waited_s(self) -> float:
        """Seconds to the first dispatch, or waited so far."""
        return (self.dispatched_at or self._until) - self.submitted_at

    @property
    def actual_s(self) -> float | None:
        """Seconds from the first dispatch to completion; None if it did not succeed."""
        if self.state is not JobState.SUCCEEDED or self.dispatched_at is None:
            return None
        return self._until - self.dispatched_at

    @property
    def violated(self) -> bool:
        """Whether it has missed its QoS, or can no longer meet it."""
        if math.isinf(self.spec.qos):
            return False
        infeasible = self.state in (JobState.FAILED, JobState.REJECTED, JobState.EXPIRED)
        return infeasible or self._until > self.deadline_at

    @property
    def excess_s(self) -> float:
        """Seconds past the deadline; 0 before it."""
        return max(0.0, self._until - self.deadline_at)

    @property
    def _until(self) -> float:
        return self.as_of if self.finished_at is None else self.finished_at


class JobTracker:
    """Live status of an unfinished job.

    Args:
        status: initial status.
        clock: the gateway's clock.

    Attributes:
        id: id of the job.
        spec: specification of the job.
        clock: the gateway's clock.
    """

    def __init__(self, status: JobStatus, clock: Clock) -> None:
        self.id = status.id
        self.spec = status.spec
        self.clock = clock
        self._status = status
        self._executions_stale = False
        self._executions = Executions(status.executions)
        self._estimate: tuple[float, CompletionEstimate] | None = None
        self._watchers: set[asyncio.Event] = set()

    @property
    def status(self) -> JobStatus:
        """Latest status; its `as_of` is the time of the last change."""
        if self._executions_stale:
            # Merged on access: a job is recorded far more often than it is read.
            self._executions_stale = False
            self._status = replace(self._status, executions=self._executions.ranges())
        return self._status

    def snapshot(self) -> JobStatus:
        """Return the status as of now."""
        if self._status.state.ended:
            return self.status
        return replace(self.status, as_of=self.clock.to_unix(self.clock.now()))

    def record_dispatch(self, assignment: Assignment, now: float) -> bool:
        """Record an assignment; return whether it set the first dispatch or the estimate."""
        status = self._status
        at = self.clock.to_unix(now)
        dispatched_at = at if status.dispatched_at is None else status.dispatched_at
        estimated_s = status.estimated_s
        if (seconds := self._first_estimate(assignment, now)) is not None:
            estimated_s = at - dispatched_at + seconds
        changed = (dispatched_at, estimated_s) != (status.dispatched_at, status.estimated_s)
        if changed or status.state is JobState.QUEUED:
            self._change(
                state=JobState.RUNNING, dispatched_at=dispatched_at, estimated_s=estimated_s
            )
        return changed

    def record_execution(self, assignment: Assignment, execution: Execution) -> None:
        """Record an assignment's execution in place of the previous one."""
        self._executions.record(assignment, execution)
        self._executions_stale = True
        self._change()

    def record_end(self, state: JobState, now: float, reason: str = "") -> None:
        """Record the end; every watcher receives it as the last status."""
        if not self._status.state.ended:
            self._change(state=state, finished_at=self.clock.to_unix(now), reason=reason)

    async def watch(self) -> AsyncGenerator[JobStatus, None]:
        """Yield the status now and after every change, until the job has ended.

        A slow consumer misses intermediate changes, never the latest one.
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
        """Return the seconds to completion, fixed at the first estimable dispatch; otherwise None.

        Probes, which measure an unprofiled engine, have no estimate. All assignments of the same
        instant count.
        """
        if assignment.probe:
            return None
        if self._estimate is None or self._estimate[0] != now:
            if self._status.estimated_s is not None:
                return None
            self._estimate = now, CompletionEstimate(self.spec.queries - self._executions.queries)
        estimate = self._estimate[1]
        estimate.add(assignment)
        return estimate.seconds

    def _change(self, **changes: object) -> None:
        at = self.clock.to_unix(self.clock.now())
        self._status = replace(self._status, as_of=at, **changes)  # type: ignore[arg-type]  # the callers are in this class
        for watcher in self._watchers:
            watcher.set()
