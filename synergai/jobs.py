"""Jobs as clients submit them, and their status as a gateway reports it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.domain import Configuration, JobId, WorkerId, validate_accuracy
from synergai.errors import Cancelled, DeadlineExceeded, InvalidInput, Overloaded, SynergaiError
from synergai.names import (
    FIRST_VERSION,
    validate_name,
    validate_variant,
    validate_version,
    versioned,
)
from synergai.names import EngineName as EngineName  # part of the job

if TYPE_CHECKING:
    from datetime import datetime


class JobState(enum.Enum):
    """State of a job, with the values of ``synergai.v1.JobState``."""

    QUEUED = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    CANCELLED = 5
    REJECTED = 6
    EXPIRED = 7

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


MAX_PRIORITY: Final = 9
MAX_QUERIES: Final = 1_000_000_000


def validate_priority(priority: int) -> None:
    """Check that a priority is in range."""
    if not 0 <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"priority must be from 0 to {MAX_PRIORITY}, not {priority}")


class JobSpec(Struct, frozen=True, kw_only=True):
    """Specification of a job: `queries` of `engine`, to be completed within `qos` seconds.

    Attributes:
        qos: seconds from acceptance to the deadline; infinite for no deadline.
        priority: 0 (default) to 9 (most urgent).
        tenant: tenant for fair sharing; empty is a tenant too.
        upload_id: upload whose inputs the queries are; empty for the workers' sample sets. With
            one, `queries` may be 0, which stands for the number of its inputs.
        max_failures: inputs of the upload that may fail before the job does; None for all.
        version: version of the engine; empty leaves the choice to the gateway. Every accepted job
            has one.
        variant: variant of the engine that all queries use; empty leaves the choice to the gateway.
        min_accuracy: lowest accuracy, 0 to 1, of the variants that may be used.
    """

    engine: EngineName
    queries: int = 1
    qos: float = math.inf
    priority: int = 0
    tenant: str = ""
    upload_id: str = ""
    max_failures: int | None = None
    version: str = ""
    variant: str = ""
    min_accuracy: float = 0.0

    def __post_init__(self) -> None:
        validate_name(self.engine, "engine name")
        if self.version:
            validate_version(self.version)
        if self.variant:
            validate_variant(self.variant)
        if self.min_accuracy:
            validate_accuracy(self.min_accuracy, "min_accuracy")
        least = 0 if self.upload_id else 1
        if not least <= self.queries <= MAX_QUERIES:
            raise InvalidInput(
                f"queries must be from {least} to {MAX_QUERIES:,}, not {self.queries}"
            )
        if not self.qos > 0:
            raise InvalidInput(f"the QoS time must be positive, not {self.qos} s")
        validate_priority(self.priority)
        if self.tenant:
            validate_name(self.tenant, "tenant name")
        if self.upload_id:
            validate_name(self.upload_id, "upload id")
        elif self.max_failures is not None:
            raise InvalidInput("max_failures is for jobs over the inputs of an upload only")
        if self.max_failures is not None and not 0 <= self.max_failures <= MAX_QUERIES:
            raise InvalidInput(
                f"max_failures must be from 0 to {MAX_QUERIES:,}, not {self.max_failures}"
            )

    @property
    def engine_version(self) -> EngineName:
        """The version of the engine that the job runs, once it is accepted."""
        return versioned(self.engine, self.version or FIRST_VERSION)


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
