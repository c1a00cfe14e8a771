"""Interface of the durable job store; the journal implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Collection

    from gateway.jobs.executions import Execution
    from gateway.jobs.status import JobStatus
    from synergai.domain import AssignmentId, JobId, JobSpec, JobState


class JobStore(Protocol):
    """Durable store of submitted jobs. An operation is durable once its future is done.

    A future raises `SynergaiError` if its operation was refused or could not be written.
    """

    def accept(self, status: JobStatus, key: str = "") -> Future[JobId]:
        """Record a new job; return its id, or that of the earlier job with the same key."""

    def find_accepted(self, spec: JobSpec, key: str) -> Future[JobId | None]:
        """Return the id of the job accepted under a key, if any."""

    def record_dispatch(self, status: JobStatus) -> Future[None]:
        """Record the first dispatch and the estimate."""

    def record_execution(
        self, job_id: JobId, assignment_id: AssignmentId, execution: Execution
    ) -> Future[None]:
        """Record the completed queries of an assignment."""

    def record_end(self, status: JobStatus) -> Future[None]:
        """Record the end of the job."""

    def find_job(self, job_id: JobId, as_of: float) -> Future[JobStatus | None]:
        """Return the job, or None if it is unknown."""

    def unfinished_jobs(self, as_of: float) -> Future[list[JobStatus]]:
        """Return the jobs that have not ended, in order of acceptance."""

    def ended_jobs(
        self, states: Collection[JobState], limit: int, as_of: float
    ) -> Future[list[JobStatus]]:
        """Return the newest jobs that ended in one of `states`, newest first."""
