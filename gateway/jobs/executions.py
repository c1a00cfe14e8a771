"""Which worker ran which of a job's queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import AssignmentId, Configuration, WorkerId
    from synergai.scheduling.events import Assignment

    _End: TypeAlias = tuple[WorkerId, Configuration, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Queries [first, first + count) of a job, as one worker ran them.

    Attributes:
        seconds: from when the worker was free for them to the last report.
        labelled: how many of them have a known label.
        correct: how many of these were answered right.
    """

    worker_id: WorkerId
    configuration: Configuration
    first: int
    count: int
    seconds: float
    labelled: int = 0
    correct: int = 0

    @property
    def stop(self) -> int:
        """The first query after them."""
        return self.first + self.count

    def since(self, earlier: Execution) -> Execution:
        """What came after `earlier`, a report of the same assignment."""
        return replace(
            self,
            first=earlier.stop,
            count=self.count - earlier.count,
            seconds=self.seconds - earlier.seconds,
            labelled=self.labelled - earlier.labelled,
            correct=self.correct - earlier.correct,
        )

    def followed_by(self, later: Execution) -> Execution:
        """Both as one; `later` begins where this ends, on the same worker and configuration."""
        return replace(
            self,
            count=self.count + later.count,
            seconds=self.seconds + later.seconds,
            labelled=self.labelled + later.labelled,
            correct=self.correct + later.correct,
        )


class Executions:
    """All that is recorded of one job, with adjacent ranges of a worker and configuration as one.

    A job whose queries are streamed in is given out query by query; a person wants to see who
    ran it all the same.

    Attributes:
        queries: how many are recorded.
    """

    def __init__(self, earlier: Iterable[Execution] = ()) -> None:
        self.queries = 0
        self._by_end: dict[_End, Execution] = {}
        self._reported: dict[AssignmentId, Execution] = {}
        for execution in earlier:
            self._add(execution)

    def record(self, assignment: Assignment, execution: Execution) -> None:
        """Put what is recorded of an assignment, all from its start, in place of what was."""
        before = self._reported.pop(assignment.id, None)
        if execution.count < assignment.count:
            self._reported[assignment.id] = execution
        self._add(execution if before is None else execution.since(before))

    def ranges(self) -> tuple[Execution, ...]:
        """What is recorded, by the first query; no two of them could be one."""
        return merged(self._by_end.values())

    def _add(self, execution: Execution) -> None:
        self.queries += execution.count
        worker_id, configuration = execution.worker_id, execution.configuration
        before = self._by_end.pop((worker_id, configuration, execution.first), None)
        if before is not None:
            execution = before.followed_by(execution)
        self._by_end[worker_id, configuration, execution.stop] = execution


def merged(executions: Iterable[Execution]) -> tuple[Execution, ...]:
    """By the first query, with adjacent ranges of one worker and configuration as one."""
    found: list[Execution] = []
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
