"""Record of the queries of a job that each worker ran."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from synergai.jobs import Execution

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import AssignmentId, Configuration, WorkerId

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

    Streamed jobs are dispatched query by query, and would otherwise have as many executions.
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
