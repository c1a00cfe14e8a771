"""Submitted jobs: accepted into the journal, run on samples, resumed after a restart."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.jobs.executions import RecordedExecution
from gateway.jobs.pausing import Pauses
from gateway.jobs.permissions import check_cancel, check_visible, in_tenant, may_see
from gateway.jobs.record import JobRecord
from gateway.jobs.store import StoreFull
from gateway.jobs.tracker import JobTracker
from gateway.monitoring.outcomes import job_outcome
from synergai.domain import Fault, Job, JobId, JobState
from synergai.errors import InvalidInput, JobNotFound, Overloaded, SynergaiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Sequence

    from gateway.access.caller import Caller
    from gateway.admission.limits import Admission
    from gateway.admission.quotas import TenantQuotas, TenantUsage
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from gateway.jobs.store import JobStore
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import JobSpec
    from synergai.jobs import JobStatus
    from synergai.protocol.request_codec import Buffer
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment

_log = logging.getLogger(__name__)

_MAX_KEY: Final = 256
MAX_LISTED: Final = 1000
_ENDED: Final = frozenset(state for state in JobState if state.ended)


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
    jobs = metrics.engine(status.spec.engine_version).jobs
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

    def __init__(
        self,
        jobs: SubmittedJobs,
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
            # Before the core takes these queries as done: they run again after the pause.
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


class SubmittedJobs:
    """Service for submitting, querying, watching and cancelling jobs.

    Args:
        dispatcher: schedules the jobs.
        versions: known engines.
        journal: durable store of the jobs.
        admission: refuses jobs once the gateway is stopping.
        quotas: limits the jobs of each tenant.
        metrics: counters of ended jobs.
        clock: the gateway's clock.
        max_jobs: maximum number of unfinished jobs.

    Attributes:
        pauses: the jobs that wait until the journal can be written.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        versions: Versions,
        journal: JobStore,
        admission: Admission,
        quotas: TenantQuotas,
        metrics: Metrics,
        clock: Clock,
        *,
        max_jobs: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._versions = versions
        self._journal = journal
        self._admission = admission
        self._quotas = quotas
        self._metrics = metrics
        self._clock = clock
        self._max_jobs = max_jobs
        self._accepting = 0
        self._unfinished: dict[JobId, SubmittedJob] = {}
        self.pauses = Pauses(journal, dispatcher, self._unfinished)

    async def restore(self) -> int:
        """Resume the unfinished jobs in the journal; return their number."""
        unfinished = await self._journal.unfinished_jobs()
        for record in unfinished:
            self._start(self._tracker(record), self._quotas.restore_job(record.spec.tenant))
        return len(unfinished)

    async def submit(self, caller: Caller, spec: JobSpec, key: str = "") -> JobStatus:
        """Accept a job; return once the journal has recorded it.

        Args:
            caller: who submits it.
            spec: specification of the job; without a tenant, it is the caller's, and without a
                version of the engine, the gateway chooses one, which the job keeps.
            key: idempotency key; submitting the same specification again under it returns the
                same job.

        Raises:
            Unauthenticated, PermissionDenied: see `Caller.check` and `check_priority`.
            QuotaExceeded: the tenant has used up a quota.
            InvalidInput: the key is too long or not printable.
            NotFound: see `Versions.resolve`.
            EngineUnusable: see `Catalogue.check_known` and `check_samples`.
            IdempotencyConflict: the key was used for another specification.
            Overloaded: too many jobs are unfinished, or the disk is full.
            Unavailable: the gateway is stopping.
        """
        if len(key) > _MAX_KEY or not key.isprintable():
            raise InvalidInput(
                f"an idempotency key has at most {_MAX_KEY} characters, all of them printable"
            )
        asked = spec = in_tenant(caller, spec)
        try:
            caller.check_priority(spec.priority)
            spec = self._versions.of_job(spec, key)
            self._check_capacity(spec)
            usage = self._quotas.start_job(spec.tenant, spec.queries)
        except SynergaiError:
            # A retry after a lost reply must get the original result.
            known = await self._journal.find_accepted(asked, key) if key else None
            if known is None:
                raise
            return await self._status(known)
        tracker = self._tracker(new_job_record(spec, self._clock))
        self._accepting += 1
        accepted = self._journal.accept(tracker.record, key, asked)
        accepted.add_done_callback(partial(self._accepted, tracker, usage))
        # A job in the journal runs even if its client has gone.
        job_id = await asyncio.shield(accepted)
        return await self._status(job_id)

    async def get(self, caller: Caller, job_id: str) -> JobStatus:
        """Return the status of a job as of now.

        Raises:
            JobNotFound: the id is unknown, or the job is not for the caller to see.
        """
        status = await self._status(job_id)
        check_visible(caller, status)
        return status

    async def list(
        self, caller: Caller, states: Collection[JobState], limit: int
    ) -> list[JobStatus]:
        """Return the jobs that a caller may see, newest first.

        Args:
            caller: who asks.
            states: states to include; empty for all.
            limit: maximum number of jobs, at most `MAX_LISTED`.
        """
        limit = min(limit, MAX_LISTED)
        wanted = frozenset(states) or frozenset(JobState)
        found = []
        if ended := wanted & _ENDED:
            found = await self._journal.ended_jobs(ended, limit, partial(may_see, caller))
        seen = {record.id for record in found}
        # Newest first: of many that wait, only as many as are wanted are read.
        unfinished = (
            tracker.record
            for tracker in (job.tracker for job in reversed(self._unfinished.values()))
            if tracker.state in wanted
            and tracker.id not in seen
            and may_see(caller, tracker.spec.engine, tracker.spec.tenant)
        )
        found += islice(unfinished, limit)
        found.sort(key=lambda record: record.submitted_at, reverse=True)
        now = self._unix_now()
        return [
            job.tracker.snapshot() if (job := self._unfinished.get(r.id)) else r.status(now)
            for r in found[:limit]
        ]

    async def watch(self, caller: Caller, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """Yield the status of a job now and after every change, until it has ended.

        Raises:
            JobNotFound: the id is unknown, or the job is not, or no longer, for the caller to see.
            Unauthenticated: the caller was revoked meanwhile.
        """
        job = self._unfinished.get(JobId(job_id))
        if job is None:
            yield await self.get(caller, job_id)
            return
        async with aclosing(job.tracker.watch()) as statuses:
            async for status in statuses:
                check_visible(caller, status)
                yield status

    async def cancel(self, caller: Caller, job_id: str) -> JobStatus:
        """Cancel a job before its next query, unless it has ended; return its final status.

        Raises:
            JobNotFound: the id is unknown, or the job is not for the caller to see.
            PermissionDenied: the caller may see the job, but not cancel it.
            StoreFull: the disk is full; the job is stopped, and its end recorded later.
        """
        status = await self._status(job_id)
        check_cancel(caller, status)
        job = self._unfinished.get(JobId(job_id))
        if job is not None:
            self._dispatcher.cancel(job.tracker.id)
            if job.ending is None:  # it is paused, so the dispatcher does not know it
                job.on_ended(JobState.CANCELLED, "", Fault.UNSPECIFIED, self._clock.now())
            if job.ending is not None:
                await asyncio.shield(job.ending)
        return await self._status(job_id)

    def on_job_ended(self, tracker: JobTracker) -> None:
        """Remove a job whose end the journal has recorded."""
        job = self._unfinished.pop(tracker.id)
        self.pauses.discard(tracker.id)  # while its end was being recorded, all were paused
        if job.usage is not None:
            job.usage.end_job()
        record_job_end(self._metrics, tracker)

    async def _status(self, job_id: str) -> JobStatus:
        """Return the status of a job, without a check of the caller.

        Raises:
            JobNotFound: the id is unknown.
        """
        job = self._unfinished.get(JobId(job_id))
        if job is not None:
            return job.tracker.snapshot()
        record = await self._journal.find_job(JobId(job_id))
        if record is None:
            raise JobNotFound(job_id)
        return record.status(self._unix_now())

    def _tracker(self, record: JobRecord) -> JobTracker:
        return JobTracker(record, self._clock, self._dispatcher.expected_completion)

    def _check_capacity(self, spec: JobSpec) -> None:
        self._admission.check_open()
        self._versions.catalogue.check_known(spec.engine_version)
        self._versions.catalogue.check_samples(spec.engine_version)
        if len(self._unfinished) + self._accepting >= self._max_jobs:
            raise Overloaded(f"{self._max_jobs:,} jobs are unfinished; retry later")
        if not self._journal.accepting:
            raise StoreFull

    def _accepted(
        self, tracker: JobTracker, usage: TenantUsage | None, accepted: asyncio.Future[JobId]
    ) -> None:
        self._accepting -= 1
        if accepted.exception() is None and accepted.result() == tracker.id:
            self._start(tracker, usage)
        elif usage is not None:
            usage.end_job()

    def _start(self, tracker: JobTracker, usage: TenantUsage | None) -> None:
        job = SubmittedJob(self, self._journal, tracker, usage)
        self._unfinished[tracker.id] = job
        self.schedule(job)

    def schedule(self, job: SubmittedJob) -> None:
        """Run the queries of a job that are not recorded."""
        record = job.tracker.record
        self._dispatcher.submit(
            scheduler_job(record, self._clock),
            job,
            ready=record.spec.queries,
            done=tuple((e.first, e.stop) for e in record.executions),
        )

    def _unix_now(self) -> float:
        return self._clock.to_unix(self._clock.now())
