"""Interface of the durable job store; the journal implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from synergai.errors import Overloaded

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Collection, Sequence

    from gateway.jobs.executions import RecordedExecution
    from gateway.jobs.record import JobRecord
    from gateway.records.results import InputResult
    from synergai.domain import AssignmentId, JobId, JobSpec, JobState


class StoreFull(Overloaded):
    """The disk is full, so that nothing can be recorded; it may have room again later."""

    def __init__(self) -> None:
        super().__init__("the gateway's disk is full, so jobs cannot be recorded; try later")


class SubmissionTerms(NamedTuple):
    """What a submission has to repeat under its key, apart from the specification.

    Attributes:
        by: seconds and nanoseconds of the instant that stands for the QoS time; None without one.
        inputs: digest of the inputs of the upload; None if unknown.
    """

    by: tuple[int, int] | None = None
    inputs: int | None = None


NO_TERMS: Final = SubmissionTerms()


class ResultSink(Protocol):
    """Durable results of one job, written on the thread of the job's store."""

    def append(self, results: Sequence[InputResult]) -> None:
        """Write results; those of an index that already has one are left out.

        They are durable after `sync` only. All or none are written.

        Raises:
            OSError: they cannot be written.
        """

    def sync(self) -> None:
        """Make the results durable.

        Raises:
            OSError: the disk has failed.
        """

    def failures(self, first: int, stop: int) -> int:
        """Return the number of the results ``[first, stop)`` that are failures."""


class JobStore(Protocol):
    """Durable store of submitted jobs. An operation is durable once its future is done.

    A future raises `SynergaiError` if its operation was refused or could not be written.
    """

    @property
    def accepting(self) -> bool:
        """Whether there is room for new jobs."""

    @property
    def writable(self) -> bool:
        """Whether the progress of accepted jobs can be recorded."""

    async def wait_space_changed(self) -> None:
        """Wait until `accepting` or `writable` may have changed since the last call."""

    def accept(
        self,
        record: JobRecord,
        key: str = "",
        asked: JobSpec | None = None,
        terms: SubmissionTerms = NO_TERMS,
    ) -> Future[JobId]:
        """Record a new job; return its id, or that of the earlier job with the same key.

        Args:
            record: the job.
            key: idempotency key; empty for none.
            asked: the specification before the gateway chose what it leaves open, which jobs under
                the same key have to repeat; that of the record by default.
            terms: what else they have to repeat.
        """

    def find_accepted(
        self, spec: JobSpec, key: str, terms: SubmissionTerms = NO_TERMS
    ) -> Future[JobId | None]:
        """Return the id of the job accepted under a key, if any."""

    def record_dispatch(self, record: JobRecord) -> Future[None]:
        """Record the first dispatch and the estimate."""

    def record_execution(
        self, job_id: JobId, assignment_id: AssignmentId, execution: RecordedExecution
    ) -> Future[None]:
        """Record the completed queries of an assignment."""

    def record_results(
        self,
        job_id: JobId,
        assignment_id: AssignmentId,
        execution: RecordedExecution,
        sink: ResultSink,
        results: Sequence[InputResult],
    ) -> Future[RecordedExecution]:
        """Record the completed queries of an assignment, after their results are durable.

        Returns:
            The execution with the number of its failures.
        """

    def upload_user(self, tenant: str, upload_id: str) -> Future[JobRecord | None]:
        """Return the job over an upload of a tenant, if there is one."""

    def record_end(self, record: JobRecord) -> Future[None]:
        """Record the end of the job."""

    def find_job(self, job_id: JobId) -> Future[JobRecord | None]:
        """Return the job, or None if it is unknown."""

    def unfinished_jobs(self) -> Future[list[JobRecord]]:
        """Return the jobs that have not ended, in order of acceptance."""

    def ended_jobs(
        self,
        states: Collection[JobState],
        limit: int,
        wanted: Callable[[str, str], bool] = lambda _engine, _tenant: True,
    ) -> Future[list[JobRecord]]:
        """Return the newest jobs that ended in one of `states`, newest first.

        Args:
            states: the states.
            limit: maximum number of jobs.
            wanted: whether to include jobs of an engine and tenant; called from another thread.
        """

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all earlier operations are done; at once if there are none."""
