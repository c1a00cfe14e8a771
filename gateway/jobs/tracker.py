"""Live record of an unfinished job: its progress, the time it may take, and updates to watchers."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.journal.job_record import Executions, QueryRange, RecordedExecution, RecordedJob
from synergai.jobs import JobState, JobStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from synergai.core.scheduling.events import Assignment
    from synergai.domain import JobId
    from synergai.names import EngineName
    from synergai.runtime.clock import Clock

_MIN_INTERVAL_S: Final = 0.1
"""Minimum time between two updates to one watcher.

Each worker reports twenty times a second. With many workers on a job, an update for each report
would take more of the gateway's time than the reports.
"""
_MAX_PER_S: Final = 500.0
"""Updates per second to all watchers together.

gRPC reads no requests while earlier messages wait to be sent, so more updates than the gateway can
send would keep requests out for as long as they last.
"""
_MAX_EXECUTIONS_PER_S: Final = 10_000.0
"""Executions per second in these updates, if all have as many.

A job that runs for hours together with requests has thousands of executions. A status with
15,000 takes 65 ms, in which the gateway does nothing else.
"""


class JobTracker:
    """Live record of an unfinished job, with its estimate."""

    def __init__(
        self,
        record: RecordedJob,
        clock: Clock,
        expected: Callable[[JobId, float], float | None],
    ) -> None:
        self.id = record.id
        self.spec = record.spec
        self.clock = clock
        self._record = record
        self._executions_stale = False
        self._executions = Executions(record.executions)
        self._expected = expected
        self._choice = ""
        self._watchers: set[asyncio.Event] = set()

    @property
    def record(self) -> RecordedJob:
        if self._executions_stale:
            # Merged on access: a job is recorded far more often than it is read.
            self._executions_stale = False
            self._record = replace(self._record, executions=self._executions.ranges())
        return self._record

    @property
    def state(self) -> JobState:
        return self._record.state

    def snapshot(self) -> JobStatus:
        now = self.clock.now()
        completes_at = None if self._record.state.ended else self._expected(self.id, now)
        status = self.record.status(
            self.clock.to_unix(now),
            completes_at=None if completes_at is None else self.clock.to_unix(completes_at),
        )
        return status if status.state.ended else replace(status, choice=self._choice)

    def show_stages(self, stages: tuple[EngineName, ...], choice: str) -> None:
        """Show the stages that it runs in from now on, and why; none if it runs whole."""
        self._choice = choice
        self._change(stages=stages)

    def record_dispatch(self, assignment: Assignment, now: float) -> bool:
        """Record an assignment; return whether it set the first dispatch or the estimate.

        The estimate is fixed at the first dispatch at which there is one. Probes, which measure an
        unprofiled engine, have none.
        """
        record = self._record
        at = self.clock.to_unix(now)
        dispatched_at = at if record.dispatched_at is None else record.dispatched_at
        estimated_s = record.estimated_s
        if (
            estimated_s is None
            and not assignment.probe
            and (completes_at := self._expected(self.id, now)) is not None
        ):
            estimated_s = self.clock.to_unix(completes_at) - dispatched_at
        changed = (dispatched_at, estimated_s) != (record.dispatched_at, record.estimated_s)
        if changed or record.state is JobState.QUEUED:
            self._change(
                state=JobState.RUNNING,
                dispatched_at=dispatched_at,
                estimated_s=estimated_s,
            )
        return changed

    def record_execution(self, queries: QueryRange, execution: RecordedExecution) -> None:
        """Record the execution of a range in place of the previous one."""
        self._executions.record(queries, execution)
        self._executions_stale = True
        self._change()

    def record_end(self, state: JobState, now: float, reason: str = "") -> None:
        """Record the end; every watcher receives it as the last status."""
        if not self._record.state.ended:
            self._change(state=state, finished_at=self.clock.to_unix(now), reason=reason)

    @property
    def failures(self) -> int:
        return self._executions.failures

    @contextmanager
    def watching(self, rate: ProgressRate) -> Iterator[asyncio.Event]:
        """Yield an event that is set after every change; be a watcher of `rate` until the end."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            with rate.watching():
                yield changed
        finally:
            self._watchers.discard(changed)

    async def watch(self, rate: ProgressRate) -> AsyncGenerator[JobStatus, None]:
        """Yield the status now, at every change of state, and as queries complete, until the end.

        A slow consumer misses intermediate changes, never the latest one.
        """
        loop = asyncio.get_running_loop()
        with self.watching(rate) as changed:
            while True:
                changed.clear()
                status = self.snapshot()
                progress_at = loop.time() + rate.interval_s(len(status.executions))
                yield status
                if status.state.ended:
                    return
                await self.next_change(changed, status.state, progress_at)

    async def next_change(
        self, changed: asyncio.Event, state: JobState, progress_at: float
    ) -> None:
        """Wait for a change of state, or from `progress_at`, in the loop's time, for any other."""
        await changed.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(progress_at):
                while self.state is state:
                    changed.clear()
                    await changed.wait()

    def _change(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)  # type: ignore[arg-type]  # the callers are in this class
        for watcher in self._watchers:
            watcher.set()


class ProgressRate:
    """Spacing of the updates to a watcher, which grows with their size and number of watchers."""

    def __init__(
        self, min_interval_s: float = _MIN_INTERVAL_S, max_per_s: float = _MAX_PER_S
    ) -> None:
        self._min_interval_s = min_interval_s
        self._max_per_s = max_per_s
        self._watchers = 0

    def interval_s(self, executions: int = 0) -> float:
        """Return the time from an update with so many executions to the next one."""
        one_s = max(1 / self._max_per_s, executions / _MAX_EXECUTIONS_PER_S)
        return max(self._min_interval_s, self._watchers * one_s)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watcher while the context is open."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1
