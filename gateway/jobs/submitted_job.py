"""An unfinished submitted job, as the dispatcher sees it."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.jobs.executions import RecordedExecution
from gateway.jobs.record import JobRecord
from gateway.jobs.store import StoreFull
from gateway.monitoring.outcomes import job_outcome
from synergai.domain import Fault, Job, JobId, JobState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from gateway.admission.tenant_usage import TenantUsage
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from gateway.jobs.pausing import Pauses
    from gateway.jobs.store import JobStore
    from gateway.jobs.tracker import JobTracker
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import JobSpec
    from synergai.protocol.request_codec import Buffer
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment

_log = logging.getLogger(__name__)


def scheduler_job(record: JobRecord, clock: Clock, *, with_tensors: bool = False) -> Job:
    """Return the scheduling core's view of a job."""
    return Job(
        id=record.id,
        engine=record.spec.engine_version,
        queries=record.spec.queries,
        arrival=clock.to_monotonic(record.submitted_at),
        deadline=clock.to_monotonic(record.deadline_at),
        priority=record.spec.priority,
        tenant=record.spec.tenant,
        with_tensors=with_tensors,
        variant=record.spec.variant,
        min_accuracy=record.spec.min_accuracy,
    )


def new_job_record(spec: JobSpec, clock: Clock) -> JobRecord:
    """Return the record of a job submitted now."""
    return JobRecord(
        id=JobId(secrets.token_hex(8)),
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=clock.to_unix(clock.now()),
    )


def execution_so_far(
    worker: ConnectedWorker, progress: AssignmentProgress, now: float
) -> RecordedExecution:
    """Return the execution of an assignment as of `now`."""
    assignment = progress.assignment
    return RecordedExecution(
        worker_id=worker.id,
        configuration=assignment.configuration,
        first=assignment.first,
        count=progress.done,
        seconds=now - max(progress.dispatched_at, worker.free_since),
        labelled=progress.labelled,
        correct=progress.correct,
    )


def record_job_end(metrics: Metrics, tracker: JobTracker) -> None:
    """Record the metrics of an ended job."""
    status = tracker.snapshot()
    engine = metrics.engine(status.spec.engine_version)
    engine.labelled += status.labelled
    engine.correct += status.correct
    jobs = engine.jobs
    outcome = job_outcome(status.state, late=status.violated)
    jobs.count(outcome)
    metrics.tenants.count_job(status.spec.tenant, outcome)
    if tracker.record.dispatched_at is not None:
        jobs.queue.observe(status.waited_s)
    if status.actual_s is not None:
        jobs.observe_run(status.estimated_s, status.actual_s)
    if status.violated:
        jobs.count_violation(status.excess_s)


class _End(NamedTuple):
    """End of a job, at `now` in monotonic seconds."""

    state: JobState
    reason: str
    now: float


class UnfinishedJobs(Protocol):
    """The owner of the unfinished jobs.

    Attributes:
        pauses: the jobs that wait until the journal can be written.
    """

    pauses: Pauses

    def schedule(self, job: SubmittedJob) -> None:
        """Run the queries of a job that are not recorded."""

    def on_job_ended(self, tracker: JobTracker) -> None:
        """Remove a job whose end the journal has recorded."""


class SubmittedJob:
    """An unfinished submitted job. Its status shows only what the journal has recorded.

    Attributes:
        tracker: its live record.
        usage: its tenant's usage, on which it is counted; None without quotas.
        ending: done once its end is recorded, or could not be; None before its end.
    """

    durable = True
    with_tensors = False
    inputs_follow = False
    answered = False

    def __init__(
        self,
        jobs: UnfinishedJobs,
        journal: JobStore,
        tracker: JobTracker,
        usage: TenantUsage | None,
    ) -> None:
        self._jobs = jobs
        self._journal = journal
        self._end: _End | None = None
        self.tracker = tracker
        self.usage = usage
        self.ending: asyncio.Future[None] | None = None

    def requests(self, _first: int, _count: int) -> Sequence[bytes]:
        """Return no requests: the queries draw on samples."""
        return ()

    def excuses_crash(self, _query: int) -> bool:
        """Return False: a crash counts against the job."""
        return False

    def on_dispatched(self, _worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Record the first dispatch and the estimate."""
        if self.tracker.record_dispatch(assignment, now):
            self._journal.record_dispatch(self.tracker.record)

    def on_progress(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        _responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Record the completed queries in the journal, then in the status."""
        assignment = progress.assignment
        execution = execution_so_far(worker, progress, now)
        self._journal.record_execution(self.tracker.id, assignment.id, execution).add_done_callback(
            partial(self._recorded, assignment, execution)
        )

    def _recorded(
        self,
        assignment: Assignment,
        execution: RecordedExecution,
        recorded: asyncio.Future[None],
    ) -> None:
        if (error := recorded.exception()) is None:
            self.tracker.record_execution(assignment, execution)
        elif isinstance(error, StoreFull):
            # Before the core ends the job: these queries run again after the pause.
            self._jobs.pauses.pause(self.tracker.id)
        else:
            _log.error("job %s: queries not recorded: %s", self.tracker.id, error)

    def on_ended(self, state: JobState, reason: str, _fault: Fault, now: float) -> None:
        """Record the end in the journal, then in the status."""
        self._record_end(_End(state, reason, now))

    def resume(self) -> None:
        """Continue after a pause."""
        if self._end is not None:
            self._record_end(self._end)
            return
        if self.tracker.record.dispatched_at is not None:
            self._journal.record_dispatch(self.tracker.record)
        self._jobs.schedule(self)

    def _record_end(self, end: _End) -> None:
        self._end = end
        self._jobs.pauses.discard(self.tracker.id)
        record = replace(
            self.tracker.record,
            state=end.state,
            finished_at=self.tracker.clock.to_unix(end.now),
            reason=end.reason,
        )
        self.ending = self._journal.record_end(record)
        self.ending.add_done_callback(partial(self._ended, end))

    def _ended(self, end: _End, recorded: asyncio.Future[None]) -> None:
        error = recorded.exception()
        if error is None:
            self.tracker.record_end(end.state, end.now, end.reason)
            self._jobs.on_job_ended(self.tracker)
        elif isinstance(error, StoreFull):
            self._jobs.pauses.pause(self.tracker.id)
