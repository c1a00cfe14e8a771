"""Job status as reported by a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.domain import JobState
from synergai.errors import Cancelled, DeadlineExceeded, Overloaded, SynergaiError

if TYPE_CHECKING:
    from datetime import datetime

    from synergai.domain import Configuration, JobId, JobSpec, WorkerId
    from synergai.versions import EngineName

_ERRORS: Final[dict[JobState, type[SynergaiError]]] = {
    JobState.FAILED: SynergaiError,
    JobState.CANCELLED: Cancelled,
    JobState.REJECTED: Overloaded,
    JobState.EXPIRED: DeadlineExceeded,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Queries ``[first, first + count)`` of a job, run by one worker in `seconds`.

    Of an engine in stages, `worker_id` has the workers of each stage, joined by commas, and the
    stages joined by spaces; `configuration` is that of the last stage.
    """

    worker_id: WorkerId
    configuration: Configuration
    first: int
    count: int
    seconds: float

    @property
    def stop(self) -> int:
        """End of the range, exclusive."""
        return self.first + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Snapshot of a job.

    Attributes:
        submitted_at: when the gateway accepted it, in UTC.
        finished_at: when it ended, in UTC; None before that.
        waited_s: seconds from acceptance to the first dispatch, or waited so far.
        estimated_s: seconds from the first dispatch to completion, as estimated then.
        estimated_low_s, estimated_high_s: interval that holds the actual time of 90 % of jobs; None
            without an estimate.
        actual_s: seconds from the first dispatch to completion; None unless it succeeded.
        violated: it missed its QoS or can no longer meet it.
        excess_s: seconds past its QoS; 0 before it.
        executions: ranges of completed queries per worker; they do not overlap.
        labelled: number of completed queries with a known label.
        correct: number of these that were answered correctly.
        reason: why it failed, was rejected or expired.
        remaining_s: seconds until it is expected to complete; None if unknown or ended.
        expected_excess_s: seconds past its QoS at which it is expected to complete, 0 if in time;
            None if unknown, ended or without QoS.
        failures: number of completed queries whose input failed; see `JobSpec.upload_id`.
        stages: the stages of its engine that it runs in, or ran in at its end; empty if it runs
            whole.
        choice: why it runs in these stages; empty if there was no choice, and once it has ended.
    """

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: datetime
    finished_at: datetime | None = None
    queries_done: int = 0
    waited_s: float = 0.0
    estimated_s: float | None = None
    estimated_low_s: float | None = None
    estimated_high_s: float | None = None
    actual_s: float | None = None
    violated: bool = False
    excess_s: float = 0.0
    executions: tuple[Execution, ...] = ()
    labelled: int = 0
    correct: int = 0
    reason: str = ""
    remaining_s: float | None = None
    expected_excess_s: float | None = None
    failures: int = 0
    stages: tuple[EngineName, ...] = ()
    choice: str = ""

    @property
    def accuracy(self) -> float | None:
        """Fraction of correct answers, 0 to 1; None without labels."""
        return self.correct / self.labelled if self.labelled else None

    def raise_unless_succeeded(self) -> None:
        """Raise the error for a job that ended without success.

        Raises:
            Cancelled: it was cancelled.
            Overloaded: it was rejected.
            DeadlineExceeded: it expired.
            SynergaiError: it failed.
        """
        if error := _ERRORS.get(self.state):
            state = self.state.name.lower()
            raise error(f"job {self.id} {state}" + (f": {self.reason}" if self.reason else ""))
