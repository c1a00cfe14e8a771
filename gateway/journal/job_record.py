"""Durable record of a job, from which its status is derived."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.journal.executions import merge_adjacent
from synergai.domain import JobState
from synergai.jobs import JobStatus

if TYPE_CHECKING:
    from gateway.journal.executions import RecordedExecution
    from synergai.domain import JobId, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Facts recorded of a job. Instants are Unix times.

    Attributes:
        estimated_low_s, estimated_high_s: interval that holds 90 % of actual times; see
            `EstimateErrors`.
    """

    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: float
    dispatched_at: float | None = None
    finished_at: float | None = None
    estimated_s: float | None = None
    estimated_low_s: float | None = None
    estimated_high_s: float | None = None
    executions: tuple[RecordedExecution, ...] = ()
    reason: str = ""

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
            estimated_low_s=self.estimated_low_s,
            estimated_high_s=self.estimated_high_s,
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


class SubmissionTerms(NamedTuple):
    """What a submission has to repeat under its key, apart from the specification.

    Attributes:
        by: seconds and nanoseconds of the instant that stands for the QoS time; None without one.
        inputs: digest of the inputs of the upload; None if unknown.
    """

    by: tuple[int, int] | None = None
    inputs: int | None = None


NO_TERMS: Final = SubmissionTerms()
