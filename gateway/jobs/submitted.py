"""Submitted jobs: accepted into the journal, run whole or in stages, resumed after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from gateway.entry.access.caller import Caller, check_cancel, check_visible, in_tenant, may_see
from gateway.fleet.stages import EngineInStages
from gateway.jobs.input_feed import UNSENT_BYTES, InputFeed, JobData, TensorRoom
from gateway.jobs.own_inputs import OwnInputs, Reopening
from gateway.jobs.staged_job import StagedJobs
from gateway.jobs.submitted_job import (
    Phase,
    SubmittedJob,
    new_job_record,
    record_job_end,
    scheduler_job,
)
from gateway.journal.job_record import JobTracker
from gateway.journal.store import StoreFull
from synergai.domain import REMOVED, EngineName, JobId
from synergai.errors import EngineUnusable, InvalidInput, JobNotFound, Overloaded, SynergaiError
from synergai.jobs import JobSpec, JobState, JobStatus
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Set

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.job_routes import JobRoutes
    from gateway.entry.admission import Admission, TenantUsage
    from gateway.fleet.versions import Versions
    from gateway.journal.job_record import RecordedJob
    from gateway.journal.journal import Journal
    from gateway.monitoring.metrics import Metrics
    from synergai.runtime.clock import Clock

_log = logging.getLogger(__name__)

_MAX_KEY: Final = 256
MAX_LISTED: Final = 1000
MAX_JOBS: Final = 100_000
"""Limit of unfinished jobs."""
STAGE_BYTES: Final = 256 * 1024 * 1024
"""Tensors of jobs in stages that are in memory."""
_REROUTE_INTERVAL_S: Final = 0.02
_ENDED: Final = frozenset(state for state in JobState if state.ended)
_BATCH: Final = 64
"""Jobs paused or resumed at a time, between which the event loop does other work."""
_RESUME_INTERVAL_S: Final = 0.02
_WAITING: Final = frozenset({Phase.PAUSED, Phase.UNRECORDED})


class Pauses:
    """The jobs that are paused while their store cannot be written.

    A paused job is withdrawn from the scheduling core, so that its workers are free for requests
    and no query runs whose result would be lost. It continues with what the store has recorded.
    """

    def __init__(
        self, store: Journal, dispatcher: Dispatcher, jobs: Mapping[JobId, SubmittedJob]
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._paused: dict[JobId, SubmittedJob] = {}

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._paused

    def __len__(self) -> int:
        return len(self._paused)

    def follow(self, job: SubmittedJob) -> None:
        """Take the phase of a job into account, which has changed."""
        if job.phase in _WAITING:
            self._paused[job.tracker.id] = job
        else:
            self._paused.pop(job.tracker.id, None)

    async def follow_store(self) -> NoReturn:
        """Pause and resume all jobs as the store's room changes, until cancelled."""
        while True:
            if not self._store.writable:
                await self._pause_all()
                await self._store.wait_space_changed()
            elif self._paused:
                await asyncio.sleep(_RESUME_INTERVAL_S)
                # Afterwards, no pending write of an earlier assignment can change the jobs.
                self._store.after_pending(self._resume_some)
            else:
                await self._store.wait_space_changed()

    async def _pause_all(self) -> None:
        for number, job in enumerate(list(self._jobs.values()), 1):
            job.pause()
            if number % _BATCH == 0:
                await asyncio.sleep(0)

    def _resume_some(self) -> None:
        """Resume the next jobs that no worker still reports on."""
        if not self._store.writable:
            return
        in_flight = self._dispatcher.jobs_in_flight()
        for job_id in list(
            islice((each for each in self._paused if each not in in_flight), _BATCH)
        ):
            self._paused[job_id].resume()


class SubmittedJobs:
    """Service for submitting, querying, watching and cancelling jobs."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        versions: Versions,
        journal: Journal,
        admission: Admission,
        metrics: Metrics,
        clock: Clock,
        *,
        own_inputs: OwnInputs,
        routes: JobRoutes,
    ) -> None:
        self._dispatcher = dispatcher
        self._versions = versions
        self._journal = journal
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._own_inputs = own_inputs
        self._reopening = Reopening(own_inputs, self._start, clock)
        self._staged_jobs = StagedJobs(dispatcher, routes, clock, journal.epoch, STAGE_BYTES)
        routes.queries_left = self._queries_left
        routes.on_changed = versions.on_route_changed = self._route_changed
        self._unsent = TensorRoom(UNSENT_BYTES)
        self._tasks = TaskBag()
        self._rerouting = TaskBag()
        self._accepting = 0
        self._unfinished: dict[JobId, SubmittedJob] = {}
        self._of_engine: defaultdict[EngineName, dict[JobId, SubmittedJob]] = defaultdict(dict)
        self.pauses = Pauses(journal, dispatcher, self._unfinished)

    async def restore(self) -> int:
        """Resume the unfinished jobs in the journal; return their number."""
        for record in await self._journal.unfinished_jobs():
            usage = self._admission.restore_job(record.spec.tenant)
            job = self._add(self._tracker(record), usage)
            if record.spec.upload_id:
                await self._reopening.start(job)
            else:
                self._start(job, None)
        return len(self._unfinished)

    async def close(self) -> None:
        """Wait until the files of ended jobs are closed."""
        await self._rerouting.close()
        for job in self._unfinished.values():
            job.close_staged()
        await self._reopening.close()
        await self._tasks.wait()

    def engines(self) -> Set[EngineName]:
        """Return the engines whose jobs have not all ended."""
        return self._of_engine.keys()

    async def submit(
        self,
        caller: Caller,
        spec: JobSpec,
        key: str = "",
        inputs_digest: int | None = None,
    ) -> JobStatus:
        """Accept a job; return once the journal has recorded it.

        Without a tenant it is the caller's, and the job keeps the version of the engine that the
        gateway chooses. The same specification under the same idempotency key returns the same job.
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
            record, data = await self._prepare(caller, new_job_record(spec, self._clock))
            try:
                usage = self._admission.start_job(record.spec.tenant, record.spec.queries)
            except SynergaiError:
                self._tasks.start(self._discard(data))
                raise
        except SynergaiError:
            # A retry after a lost reply must get the original result.
            known = await self._journal.find_accepted(asked, key, inputs_digest) if key else None
            if known is None:
                raise
            return await self._status(known)
        tracker = self._tracker(record)
        self._accepting += 1
        accepted = self._journal.accept(tracker.record, key, asked, inputs_digest)
        accepted.add_done_callback(partial(self._accepted, tracker, usage, data))
        # A job in the journal runs even if its client has gone.
        job_id = await asyncio.shield(accepted)
        return await self._status(job_id)

    async def get(self, caller: Caller, job_id: str) -> JobStatus:
        status = await self._status(job_id)
        check_visible(caller, status)
        return status

    async def list(
        self, caller: Caller, states: Collection[JobState], limit: int
    ) -> list[JobStatus]:
        """Return the jobs that a caller may see, newest first, at most `MAX_LISTED`."""
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
        now = self._clock.unix_now()
        return [
            job.tracker.snapshot() if (job := self._unfinished.get(r.id)) else r.status(now)
            for r in found[:limit]
        ]

    async def watch(self, caller: Caller, job_id: str) -> AsyncGenerator[JobStatus, None]:
        """Yield the status of a job now, and again as it changes, until it has ended."""
        job = self._unfinished.get(JobId(job_id))
        if job is None:
            yield await self.get(caller, job_id)
            return
        async with aclosing(job.tracker.watch()) as statuses:
            async for status in statuses:
                check_visible(caller, status)
                yield status

    async def cancel(self, caller: Caller, job_id: str) -> JobStatus:
        """Cancel a job before its next query, unless it has ended; return its final status."""
        status = await self._status(job_id)
        check_cancel(caller, status)
        if job_id != status.id:
            if self._dispatcher.handler(JobId(job_id)) is None:
                raise JobNotFound(job_id)
            raise InvalidInput(f"{job_id} is a stage of job {status.id}: cancel that job")
        job = self._unfinished.get(JobId(job_id))
        if job is not None:
            await job.cancel()
        return await self._status(job_id)

    def _route_changed(self, engine: EngineName) -> None:
        """Run the jobs of an engine in the way in which it runs now: whole, or in stages."""
        for job in list(self._of_engine.get(engine, {}).values()):
            if job.runs_as_due:
                continue
            if not job.change_stages(self._versions.catalogue.stages.candidates(engine).values()):
                job.pause()
                self._rerouting.start(self._resume(job))

    def _queries_left(self, engine: EngineName, floor: float) -> Iterator[int]:
        """Return the queries without a result of each running job of an engine and a floor."""
        for job in self._of_engine.get(engine, {}).values():
            record = job.tracker.record
            if job.phase is Phase.RUNNING and record.spec.min_accuracy == floor:
                yield record.spec.queries - sum(each.count for each in record.executions)

    async def _resume(self, job: SubmittedJob) -> None:
        """Resume a job once no worker reports on it and no write of its results is pending."""
        while job.tracker.id in self._dispatcher.jobs_in_flight():  # noqa: ASYNC110 - workers report
            await asyncio.sleep(_REROUTE_INTERVAL_S)
        self._journal.after_pending(job.resume)

    def _phase_changed(self, job: SubmittedJob) -> None:
        self.pauses.follow(job)
        if job.phase is not Phase.ENDED:
            return
        tracker = job.tracker
        del self._unfinished[tracker.id]
        del self._of_engine[tracker.spec.engine_version][tracker.id]
        if not self._of_engine[tracker.spec.engine_version]:
            del self._of_engine[tracker.spec.engine_version]
        if job.usage is not None:
            job.usage.end_job()
        record_job_end(self._metrics, tracker)
        if job.feed is not None:
            self._tasks.start(self._close_feed(job.feed))

    async def _close_feed(self, feed: InputFeed) -> None:
        await feed.close()
        await self._own_inputs.close(feed.data)

    async def _prepare(
        self, caller: Caller, record: RecordedJob
    ) -> tuple[RecordedJob, JobData | None]:
        if not record.spec.upload_id:
            return record, None
        return await self._own_inputs.prepare(caller.tenant, record)

    async def _discard(self, data: JobData | None) -> None:
        if data is not None:
            await self._own_inputs.discard(data)

    def unfinished(self, job_id: str) -> SubmittedJob | None:
        return self._unfinished.get(JobId(job_id))

    async def _status(self, job_id: str) -> JobStatus:
        """Return the status of a job, or of that of a stage, without a check of the caller."""
        job_id = job_id.partition(".")[0]
        job = self._unfinished.get(JobId(job_id))
        if job is not None:
            return job.tracker.snapshot()
        record = await self._journal.find_job(JobId(job_id))
        if record is None:
            raise JobNotFound(job_id)
        return record.status(self._clock.unix_now())

    def _tracker(self, record: RecordedJob) -> JobTracker:
        return JobTracker(record, self._clock, self._expected_completion)

    def _expected_completion(self, job_id: JobId, now: float) -> float | None:
        job = self._unfinished.get(job_id)
        return None if job is None else job.expected_completion(now)

    def _check_capacity(self, spec: JobSpec) -> None:
        self._admission.check_open()
        catalogue, engine = self._versions.catalogue, spec.engine_version
        self._check_stays(engine)
        route = self._staged_jobs.routes.route(spec)
        try:
            catalogue.check_known(engine)
        except EngineInStages:
            if route is None:
                raise
        if route is not None:
            for stage in route.engines:
                catalogue.check_known(stage.name)
            engine = route.engines[0].name
        if not spec.upload_id:
            catalogue.check_samples(engine)
        if len(self._unfinished) + self._accepting >= MAX_JOBS:
            raise Overloaded(f"{MAX_JOBS:,} jobs are unfinished; retry later")
        if not self._journal.accepting:
            raise StoreFull

    def _check_stays(self, engine: EngineName) -> None:
        """Check that an engine is not being removed from all workers that have it."""
        fleet, offers = self._dispatcher.workers, self._versions.catalogue.offers_of(engine)
        having = [fleet[each] for each in offers if each in fleet]
        if having and all(engine in worker.being_removed for worker in having):
            raise EngineUnusable(f"engine {engine!r} cannot be used: {REMOVED}")

    def _accepted(
        self,
        tracker: JobTracker,
        usage: TenantUsage | None,
        data: JobData | None,
        accepted: asyncio.Future[JobId],
    ) -> None:
        self._accepting -= 1
        if accepted.exception() is None and accepted.result() == tracker.id:
            self._start(self._add(tracker, usage), data)
            return
        if usage is not None:
            usage.end_job()
        self._tasks.start(self._discard(data))

    def _add(self, tracker: JobTracker, usage: TenantUsage | None) -> SubmittedJob:
        job = SubmittedJob(
            tracker,
            usage,
            self._dispatcher,
            self._journal,
            self._phase_changed,
            self._staged_jobs,
        )
        self._unfinished[tracker.id] = job
        self._of_engine[tracker.spec.engine_version][tracker.id] = job
        return job

    def _start(self, job: SubmittedJob, data: JobData | None) -> None:
        feed = None
        if data is not None:
            fail = partial(self._dispatcher.fail, job.tracker.id)
            view = scheduler_job(job.tracker.record, self._clock)
            feed = InputFeed(view, data, self._unsent, fail, self._own_inputs.measure_results)
        job.start(feed)
