"""Submitted jobs: accepted into the journal, run from samples, finished whatever happens."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.jobs.executions import Execution
from gateway.jobs.status import JobStatus, JobTracker
from synergai.domain import Fault, Job, JobId, JobState
from synergai.errors import InvalidInput, JobNotFound, Overloaded, SynergaiError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Sequence

    from gateway.admission.limits import Admission
    from gateway.clock import Clock
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker, Outstanding
    from gateway.jobs.store import JobStore
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import JobSpec
    from synergai.protocol.request_codec import Buffer
    from synergai.scheduling.events import Assignment

_log = logging.getLogger(__name__)

_MAX_KEY: Final = 256
MAX_LISTED: Final = 1000
_ENDED: Final = frozenset(state for state in JobState if state.ended)


def job_of(status: JobStatus, clock: Clock, *, with_tensors: bool = False) -> Job:
    """The scheduler's view of a job whose client may leave and come back."""
    return Job(
        id=status.id,
        engine=status.spec.engine,
        queries=status.spec.queries,
        arrival=clock.instant(status.submitted_at),
        deadline=clock.instant(status.deadline_at),
        priority=status.spec.priority,
        tenant=status.spec.tenant,
        with_tensors=with_tensors,
    )


def new_status(spec: JobSpec, clock: Clock) -> JobStatus:
    """A job that is submitted now."""
    now = clock.unix(clock.now())
    return JobStatus(
        id=JobId(secrets.token_hex(8)),
        spec=spec,
        state=JobState.QUEUED,
        as_of=now,
        submitted_at=now,
    )


def execution_of(worker: ConnectedWorker, outstanding: Outstanding, now: float) -> Execution:
    """What is done of an assignment up to now."""
    assignment = outstanding.assignment
    return Execution(
        worker_id=worker.id,
        configuration=assignment.configuration,
        first=assignment.first,
        count=outstanding.done,
        seconds=now - max(outstanding.dispatched_at, worker.free_since),
        labelled=outstanding.labelled,
        correct=outstanding.correct,
    )


def account(metrics: Metrics, status: JobStatus) -> None:
    """Count and measure a job that has ended."""
    engine = metrics.engine(status.spec.engine)
    engine.count_job(status.state)
    if status.dispatched_at is not None:
        engine.observe_wait(status.waited_s)
    if status.actual_s is not None:
        engine.observe_completion(status.estimated_s, status.actual_s)
    if status.violated:
        engine.count_violation(status.excess_s)
    elif status.state is JobState.SUCCEEDED:
        engine.count_met()


class SubmittedJob:
    """A journalled job that has not ended. What is published of it is in the journal."""

    durable = True
    with_tensors = False

    def __init__(self, jobs: Jobs, journal: JobStore, tracker: JobTracker) -> None:
        self._jobs = jobs
        self._journal = journal
        self.tracker = tracker

    def requests(self, _first: int, _count: int) -> Sequence[bytes]:
        """None: its queries are drawn from samples."""
        return ()

    def dispatched(self, assignment: Assignment, now: float) -> None:
        """Note the first dispatch and the estimate."""
        if self.tracker.dispatched(assignment, now):
            self._journal.dispatched(self.tracker.status)

    def recorded(
        self,
        worker: ConnectedWorker,
        outstanding: Outstanding,
        _responses: Sequence[Buffer],
        now: float,
    ) -> None:
        """Have the journal record what is done, and publish it then."""
        assignment = outstanding.assignment
        execution = execution_of(worker, outstanding, now)
        self._journal.record(self.tracker.id, assignment.id, execution).add_done_callback(
            partial(self._recorded, assignment, execution)
        )

    def _recorded(
        self,
        assignment: Assignment,
        execution: Execution,
        recorded: asyncio.Future[None],
    ) -> None:
        if (error := recorded.exception()) is None:
            self.tracker.recorded(assignment, execution)
        else:
            _log.error("not recorded: %s", error)

    def ended(self, state: JobState, reason: str, _fault: Fault, now: float) -> None:
        """Have the journal record the end, and publish it then."""
        status = replace(
            self.tracker.status,
            state=state,
            finished_at=self.tracker.clock.unix(now),
            reason=reason,
        )
        self._journal.end(status).add_done_callback(partial(self._ended, state, reason, now))

    def _ended(
        self, state: JobState, reason: str, now: float, recorded: asyncio.Future[None]
    ) -> None:
        if recorded.exception() is None:
            self.tracker.end(state, now, reason)
            self._jobs.leave(self.tracker.status)


class Jobs:
    """Accepts jobs, answers for them, and calls them off.

    Args:
        max_jobs: how many may be unfinished at a time.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        journal: JobStore,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
        *,
        max_jobs: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._journal = journal
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._max_jobs = max_jobs
        self._accepting = 0
        self._unfinished: dict[JobId, SubmittedJob] = {}

    async def restore(self) -> int:
        """Go on with what an earlier gateway accepted; return how many jobs that are."""
        unfinished = await self._journal.unfinished(self._unix_now())
        for status in unfinished:
            self._start(JobTracker(status, self._clock))
        return len(unfinished)

    async def submit(self, spec: JobSpec, key: str = "") -> JobStatus:
        """Accept a job; it is in the journal when this returns.

        Args:
            spec: what to do.
            key: the same key with the same specification gives the same job.

        Raises:
            InvalidInput: the key is too long or not printable.
            EngineNotFound, EngineUnusable: see `Catalogue.check_known`.
            IdempotencyConflict: the key was used for another specification.
            Overloaded: too many jobs are unfinished.
            Unavailable: the gateway is about to stop.
        """
        if len(key) > _MAX_KEY or not key.isprintable():
            raise InvalidInput(
                f"an idempotency key has at most {_MAX_KEY} characters, all of them printable"
            )
        try:
            self._check_room_for(spec)
        except SynergaiError:
            # Who tries again because the answer was lost is owed the same answer.
            known = await self._journal.accepted(spec, key) if key else None
            if known is None:
                raise
            return await self.get(known)
        tracker = JobTracker(new_status(spec, self._clock), self._clock)
        self._accepting += 1
        accepted = self._journal.accept(tracker.status, key)
        accepted.add_done_callback(partial(self._accepted, tracker))
        # What the journal has accepted runs, even if the client does not wait for the answer.
        job_id = await asyncio.shield(accepted)
        return await self.get(job_id)

    async def get(self, job_id: str) -> JobStatus:
        """The job as it is now.

        Raises:
            JobNotFound: nobody knows it.
        """
        job = self._unfinished.get(JobId(job_id))
        if job is not None:
            return job.tracker.snapshot()
        status = await self._journal.job(JobId(job_id), self._unix_now())
        if status is None:
            raise JobNotFound(job_id)
        return status

    async def list(self, states: Collection[JobState], limit: int) -> list[JobStatus]:
        """Jobs in one of `states`, or in any if there are none; newest first.

        Args:
            states: what to keep.
            limit: at most so many; at most `MAX_LISTED`.
        """
        limit = min(limit, MAX_LISTED)
        wanted = frozenset(states) or frozenset(JobState)
        found = []
        if ended := wanted & _ENDED:
            found = await self._journal.ended(ended, limit, self._unix_now())
        seen = {status.id for status in found}
        unfinished = (job.tracker.snapshot() for job in self._unfinished.values())
        found += [s for s in unfinished if s.state in wanted and s.id not in seen]
        found.sort(key=lambda status: status.submitted_at, reverse=True)
        return found[:limit]

    async def watch(self, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """The job as it is, then again whenever it changed, until it has ended.

        Raises:
            JobNotFound: nobody knows it.
        """
        job = self._unfinished.get(JobId(job_id))
        if job is None:
            yield await self.get(job_id)
            return
        async with aclosing(job.tracker.watch()) as statuses:
            async for status in statuses:
                yield status

    async def cancel(self, job_id: str) -> JobStatus:
        """Stop the job at its next query, if it has not ended; what it is then.

        Raises:
            JobNotFound: nobody knows it.
        """
        job = self._unfinished.get(JobId(job_id))
        if job is not None:
            self._dispatcher.cancel(JobId(job_id))
            async with aclosing(job.tracker.watch()) as statuses:
                async for status in statuses:
                    if status.state.ended:
                        return status
        return await self.get(job_id)

    def leave(self, status: JobStatus) -> None:
        """A job has ended, and the journal knows."""
        del self._unfinished[status.id]
        account(self._metrics, status)

    def _check_room_for(self, spec: JobSpec) -> None:
        self._admission.check_open()
        self._catalogue.check_known(spec.engine)
        if len(self._unfinished) + self._accepting >= self._max_jobs:
            raise Overloaded(f"{self._max_jobs:,} jobs are unfinished already; try later")

    def _accepted(self, tracker: JobTracker, accepted: asyncio.Future[JobId]) -> None:
        self._accepting -= 1
        if accepted.exception() is None and accepted.result() == tracker.id:
            self._start(tracker)

    def _start(self, tracker: JobTracker) -> None:
        job = SubmittedJob(self, self._journal, tracker)
        status = tracker.status
        self._unfinished[status.id] = job
        self._dispatcher.start(
            job_of(status, self._clock),
            job,
            ready=status.spec.queries,
            done=tuple((e.first, e.first + e.count) for e in status.executions),
        )

    def _unix_now(self) -> float:
        return self._clock.unix(self._clock.now())
