"""Record of a job: what is durable, and of an unfinished one its progress and its watchers."""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from synergai.jobs import Execution, JobSpec, JobState, JobStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from synergai.core.scheduling.events import Assignment
    from synergai.domain import AssignmentId, Configuration, EngineName, JobId, WorkerId
    from synergai.runtime.clock import Clock

    _End: TypeAlias = tuple[WorkerId, Configuration, int]


class QueryRange(Protocol):
    """Queries of a job whose execution is recorded under one id, such as an assignment."""

    @property
    def id(self) -> AssignmentId:
        """Unique among all jobs."""

    @property
    def count(self) -> int:
        """How many there are; fewer may be recorded so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExecution(Execution):
    """An execution with its labels; `seconds` run from when the worker was free for it."""

    labelled: int = 0
    correct: int = 0
    failures: int = 0

    def since(self, earlier: RecordedExecution) -> RecordedExecution:
        """Return the difference to `earlier`, a report of the same assignment."""
        return replace(
            self,
            first=earlier.stop,
            count=self.count - earlier.count,
            seconds=self.seconds - earlier.seconds,
            labelled=self.labelled - earlier.labelled,
            correct=self.correct - earlier.correct,
            failures=self.failures - earlier.failures,
        )

    def followed_by(self, later: RecordedExecution) -> RecordedExecution:
        """Merge with `later`, the adjacent range of the same worker and configuration."""
        return replace(
            self,
            count=self.count + later.count,
            seconds=self.seconds + later.seconds,
            labelled=self.labelled + later.labelled,
            correct=self.correct + later.correct,
            failures=self.failures + later.failures,
        )


class Executions:
    """Recorded executions of one job; adjacent ranges of a worker and configuration are merged.

    A job that runs beside requests is dispatched in small parts, which would all be kept.
    """

    def __init__(self, earlier: Iterable[RecordedExecution] = ()) -> None:
        self.queries = self.failures = 0
        self._by_end: dict[_End, RecordedExecution] = {}
        self._reported: dict[AssignmentId, RecordedExecution] = {}
        for execution in earlier:
            self._add(execution)

    def record(self, queries: QueryRange, execution: RecordedExecution) -> None:
        """Replace the recorded execution of a range; `execution` covers it from its start."""
        before = self._reported.pop(queries.id, None)
        if execution.count < queries.count:
            self._reported[queries.id] = execution
        self._add(execution if before is None else execution.since(before))

    def ranges(self) -> tuple[RecordedExecution, ...]:
        """Return the executions, sorted by first query and fully merged."""
        return merge_adjacent(self._by_end.values())

    def _add(self, execution: RecordedExecution) -> None:
        self.queries += execution.count
        self.failures += execution.failures
        worker_id, configuration = execution.worker_id, execution.configuration
        before = self._by_end.pop((worker_id, configuration, execution.first), None)
        if before is not None:
            execution = before.followed_by(execution)
        self._by_end[worker_id, configuration, execution.stop] = execution


def merge_adjacent(executions: Iterable[RecordedExecution]) -> tuple[RecordedExecution, ...]:
    """Sort by first query and merge adjacent ranges of the same worker and configuration."""
    found: list[RecordedExecution] = []
    for execution in sorted(executions, key=lambda each: each.first):
        last = found[-1] if found else None
        if (
            last is not None
            and last.stop == execution.first
            and last.worker_id == execution.worker_id
            and last.configuration == execution.configuration
        ):
            found[-1] = last.followed_by(execution)
        else:
            found.append(execution)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """Facts recorded of a job. Instants are Unix times.

    Attributes:
        stages: see `JobStatus`; recorded at its end.
    """

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: float
    dispatched_at: float | None = None
    finished_at: float | None = None
    estimated_s: float | None = None
    executions: tuple[RecordedExecution, ...] = ()
    reason: str = ""
    stages: tuple[EngineName, ...] = ()

    @property
    def deadline_at(self) -> float:
        """Unix time of the deadline; infinite without QoS."""
        return self.submitted_at + self.spec.qos

    @property
    def actual_s(self) -> float | None:
        """Seconds from the first dispatch to completion; None unless it succeeded."""
        if (
            self.state is not JobState.SUCCEEDED
            or self.dispatched_at is None
            or self.finished_at is None
        ):
            return None
        return self.finished_at - self.dispatched_at

    def status(self, now: float, *, completes_at: float | None = None) -> JobStatus:
        """Return the status as of `now`, or of the end if the job has ended."""
        until = now if self.finished_at is None else self.finished_at
        dispatched_at = until if self.dispatched_at is None else self.dispatched_at
        finished_at = (
            None if self.finished_at is None else datetime.fromtimestamp(self.finished_at, UTC)
        )
        return JobStatus(
            id=self.id,
            spec=self.spec,
            state=self.state,
            submitted_at=datetime.fromtimestamp(self.submitted_at, UTC),
            finished_at=finished_at,
            queries_done=sum(execution.count for execution in self.executions),
            waited_s=dispatched_at - self.submitted_at,
            estimated_s=self.estimated_s,
            actual_s=self.actual_s,
            violated=self._is_violated(until),
            excess_s=max(0.0, until - self.deadline_at),
            executions=merge_adjacent(self.executions),
            labelled=sum(execution.labelled for execution in self.executions),
            correct=sum(execution.correct for execution in self.executions),
            reason=self.reason,
            remaining_s=None if completes_at is None else completes_at - now,
            expected_excess_s=self._excess_s(completes_at),
            failures=sum(execution.failures for execution in self.executions),
            stages=self.stages,
        )

    def _excess_s(self, completes_at: float | None) -> float | None:
        if completes_at is None or math.isinf(self.spec.qos):
            return None
        return max(0.0, completes_at - self.deadline_at)

    def _is_violated(self, until: float) -> bool:
        if math.isinf(self.spec.qos):
            return False
        infeasible = self.state in (JobState.FAILED, JobState.REJECTED, JobState.EXPIRED)
        return infeasible or until > self.deadline_at


class UploadUse(NamedTuple):
    """A job over an upload."""

    job_id: JobId
    tenant: str
    upload_id: str
    finished_at: float | None


PROGRESS_INTERVAL_S: Final = 1.0
"""Time between two updates to one watcher.

Each worker reports twenty times a second. With many workers on a job, an update for each report
would take more of the gateway's time than the reports.
"""
_EXECUTIONS_PER_S: Final = 1_000.0
"""Executions per second in the updates to one watcher.

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
    def watching(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set after every change."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            yield changed
        finally:
            self._watchers.discard(changed)

    async def watch(self) -> AsyncGenerator[JobStatus, None]:
        """Yield the status now, at every change of state, and as queries complete, until the end.

        A slow consumer misses intermediate changes, never the latest one.
        """
        loop = asyncio.get_running_loop()
        with self.watching() as changed:
            while True:
                changed.clear()
                status = self.snapshot()
                size_s = len(status.executions) / _EXECUTIONS_PER_S
                progress_at = loop.time() + max(PROGRESS_INTERVAL_S, size_s)
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
