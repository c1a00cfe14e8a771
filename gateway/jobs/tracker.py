"""Tracker of an unfinished job."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.jobs.completion_estimate import CompletionEstimate
from gateway.jobs.executions import Executions
from synergai.domain import JobState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gateway.jobs.executions import RecordedExecution
    from gateway.jobs.record import JobRecord
    from synergai.jobs import JobStatus
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment


class JobTracker:
    """Live record of an unfinished job.

    Args:
        record: initial record.
        clock: the gateway's clock.

    Attributes:
        id: id of the job.
        spec: specification of the job.
        clock: the gateway's clock.
    """

    def __init__(self, record: JobRecord, clock: Clock) -> None:
        self.id = record.id
        self.spec = record.spec
        self.clock = clock
        self._record = record
        self._executions_stale = False
        self._executions = Executions(record.executions)
        self._estimate: tuple[float, CompletionEstimate] | None = None
        self._watchers: set[asyncio.Event] = set()

    @property
    def record(self) -> JobRecord:
        """Latest record."""
        if self._executions_stale:
            # Merged on access: a job is recorded far more often than it is read.
            self._executions_stale = False
            self._record = replace(self._record, executions=self._executions.ranges())
        return self._record

    def snapshot(self) -> JobStatus:
        """Return the status as of now."""
        return self.record.status(self.clock.to_unix(self.clock.now()))

    def record_dispatch(self, assignment: Assignment, now: float) -> bool:
        """Record an assignment; return whether it set the first dispatch or the estimate."""
        record = self._record
        at = self.clock.to_unix(now)
        dispatched_at = at if record.dispatched_at is None else record.dispatched_at
        estimated_s = record.estimated_s
        if (seconds := self._first_estimate(assignment, now)) is not None:
            estimated_s = at - dispatched_at + seconds
        changed = (dispatched_at, estimated_s) != (record.dispatched_at, record.estimated_s)
        if changed or record.state is JobState.QUEUED:
            self._change(
                state=JobState.RUNNING, dispatched_at=dispatched_at, estimated_s=estimated_s
            )
        return changed

    def record_execution(self, assignment: Assignment, execution: RecordedExecution) -> None:
        """Record an assignment's execution in place of the previous one."""
        self._executions.record(assignment, execution)
        self._executions_stale = True
        self._change()

    def record_end(self, state: JobState, now: float, reason: str = "") -> None:
        """Record the end; every watcher receives it as the last status."""
        if not self._record.state.ended:
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
            if self._record.estimated_s is not None:
                return None
            self._estimate = now, CompletionEstimate(self.spec.queries - self._executions.queries)
        estimate = self._estimate[1]
        estimate.add(assignment)
        return estimate.seconds

    def _change(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]  # the callers are in this class
        for watcher in self._watchers:
            watcher.set()
