"""The durable store that submitted jobs are kept in; the journal implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Collection

    from gateway.jobs.executions import Execution
    from gateway.jobs.status import JobStatus
    from synergai.domain import AssignmentId, JobId, JobSpec, JobState


class JobStore(Protocol):
    """Jobs on disk. An operation is durable when its future is done.

    A future raises `SynergaiError` if its operation was refused or could not be written.
    """

    def accept(self, status: JobStatus, key: str = "") -> Future[JobId]:
        """Record a new job; return its id, or that of the job with the same key."""

    def accepted(self, spec: JobSpec, key: str) -> Future[JobId | None]:
        """Return the job that was accepted under a key, if any."""

    def dispatched(self, status: JobStatus) -> Future[None]:
        """Record that the job runs."""

    def record(
        self, job_id: JobId, assignment_id: AssignmentId, execution: Execution
    ) -> Future[None]:
        """Record the completed queries of an assignment."""

    def end(self, status: JobStatus) -> Future[None]:
        """Record how and when the job ended."""

    def job(self, job_id: JobId, as_of: float) -> Future[JobStatus | None]:
        """Return the job, if it is recorded."""

    def unfinished(self, as_of: float) -> Future[list[JobStatus]]:
        """Return the jobs that have not ended, in order of acceptance."""

    def ended(
        self, states: Collection[JobState], limit: int, as_of: float
    ) -> Future[list[JobStatus]]:
        """Return the newest jobs that ended in one of `states`, newest first."""
