"""Files of the jobs over uploads: opened for a job, released after it, and deleted in the end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import structs

from gateway.jobs.input_feed import JobData
from gateway.jobs.submitted_job import Phase, SubmittedJob
from gateway.journal.data_store import DataKey, DataStore, OpenLog, ResultLog, Stored
from gateway.journal.record_log import DamagedLog, is_out_of_space
from gateway.journal.store import StoreFull
from synergai.domain import Fault
from synergai.errors import InvalidInput, SynergaiError, Unavailable, UploadNotFound, UploadUsed
from synergai.jobs import JobSpec, JobState
from synergai.runtime.clock import Backoff
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gateway.jobs.uploads import InputUploads
    from gateway.journal.job_record import RecordedJob, UploadUse
    from gateway.journal.journal import Journal
    from synergai.runtime.clock import Clock

_log = logging.getLogger(__name__)

_DAMAGED: Final = (UploadNotFound, DamagedLog)
"""Permanent faults of files; the job fails."""
_UNREADABLE: Final = (OSError, StoreFull)
"""Temporary faults of files; the job waits."""
_DAMAGE: Final = "its inputs or results were damaged or are missing"
RETRY: Final = Backoff(initial_s=1.0, max_s=60.0)
"""Pauses between attempts."""
_INTERVAL_S: Final = 60.0
_UPLOADS_KEPT_S: Final = 86_400.0
"""Time after its last change for which an unused upload is kept."""


class OwnInputs:
    """What `SubmittedJobs` needs for jobs over uploads."""

    def __init__(self, store: DataStore, uploads: InputUploads, journal: Journal) -> None:
        self._store = store
        self._uploads = uploads
        self._journal = journal

    async def prepare(self, tenant: str, record: RecordedJob) -> tuple[RecordedJob, JobData]:
        """Open the upload of a new job; return its record and its files."""
        try:
            return await self._prepare(tenant, record)
        except OSError as error:
            raise Unavailable(
                f"the files of upload {record.spec.upload_id!r} cannot be opened now: "
                f"{error.strerror}; submit the job again later"
            ) from error

    async def _prepare(self, tenant: str, record: RecordedJob) -> tuple[RecordedJob, JobData]:
        spec = record.spec
        if user := await self._journal.upload_user(spec.tenant, spec.upload_id):
            raise UploadUsed(spec.upload_id, user.id)
        inputs = await self._uploads.take((spec.tenant, tenant), spec.upload_id)
        try:
            stored = len(inputs.log)
            _check_count(spec, stored)
            record = replace(record, spec=structs.replace(spec, queries=stored))
            return record, await self._open_results(record, inputs)
        except BaseException:
            await self._uploads.give_back(inputs)
            raise

    async def discard(self, data: JobData) -> None:
        """Release the files of a job that was not accepted."""
        await self._store.release(data.results_log)
        await self._store.delete(data.results_log.key)
        await self._uploads.give_back(data.inputs)

    async def restore(self, record: RecordedJob) -> JobData:
        """Open the files of an unfinished job in the journal."""
        inputs = await self._uploads.take((record.spec.tenant,), record.spec.upload_id)
        try:
            data = await self._open_results(record, inputs)
        except BaseException:
            await self._uploads.give_back(inputs)
            raise
        for execution in record.executions:
            if data.results.lacks(execution.first, execution.stop):
                await self.close(data)
                raise DamagedLog("results that were recorded are missing")
        return data

    async def close(self, data: JobData) -> None:
        await self._store.release(data.results_log)
        await self._store.release(data.inputs)

    def measure_results(self, data: JobData) -> None:
        """Account for the size of results that a job has stored."""
        self._store.update(data.results_log)

    async def _open_results(self, record: RecordedJob, inputs: OpenLog) -> JobData:
        key = DataKey(record.spec.tenant, "results", record.id)
        try:
            opened = await self._store.open(key, create=True)
        except OSError as error:
            if is_out_of_space(error):
                raise StoreFull from error
            raise
        try:
            results = await asyncio.to_thread(ResultLog, opened.log, record.spec.queries)
        except BaseException:
            await self._store.release(opened)
            raise
        return JobData(inputs, opened, results)


def _check_count(spec: JobSpec, stored: int) -> None:
    if not stored or spec.queries not in (0, stored):
        raise InvalidInput(
            f"upload {spec.upload_id!r} has {stored:,} inputs"
            + (f", not {spec.queries:,}" if spec.queries else "; add some first")
        )


class Reopening:
    """Opens the files of the unfinished jobs when the gateway starts, again and again if need be.

    A job whose files cannot be opened is not lost: they may be readable later, as those of a disk
    with errors or after a shortage of file descriptors.
    """

    def __init__(
        self,
        own_inputs: OwnInputs,
        on_opened: Callable[[SubmittedJob, JobData], object],
        clock: Clock,
    ) -> None:
        self._own_inputs = own_inputs
        self._on_opened = on_opened
        self._clock = clock
        self._jobs: list[SubmittedJob] = []
        self._tasks = TaskBag()

    async def start(self, job: SubmittedJob) -> None:
        """Run a job now, or once its files can be opened, unless it ends before."""
        if not await self._open(job):
            self._jobs.append(job)
            if not self._tasks:
                self._tasks.start(self._run())

    async def close(self) -> None:
        """Stop trying; the jobs stay in the journal."""
        await self._tasks.close()

    async def _run(self) -> None:
        delays = RETRY.delays()
        while self._jobs:
            await asyncio.sleep(next(delays))
            for job in list(self._jobs):
                if job.phase is not Phase.OPENING or await self._try(job):
                    self._jobs.remove(job)

    async def _try(self, job: SubmittedJob) -> bool:
        """Open a job, which is tried again after an unexpected error as well."""
        try:
            return await self._open(job)
        except Exception:  # noqa: BLE001 - a bug at one job must not end the attempts for others
            _log.exception("job %s cannot be opened", job.tracker.id)
            return False

    async def _open(self, job: SubmittedJob) -> bool:
        """Run a job if its files can be opened; return whether nothing is left to do."""
        try:
            data = await self._own_inputs.restore(job.tracker.record)
        except _DAMAGED as error:
            _log.error("job %s cannot continue: %s", job.tracker.id, error)
            job.on_ended(JobState.FAILED, _DAMAGE, Fault.UNSPECIFIED, self._clock.now())
            if job.ending is not None:
                await asyncio.wait([job.ending])
            return True
        except _UNREADABLE as error:
            _log.error("job %s waits until its files can be opened: %s", job.tracker.id, error)
            return False
        if job.phase is not Phase.OPENING:  # it was cancelled in the meantime
            await self._own_inputs.close(data)
            return True
        self._on_opened(job, data)
        return True


class Retention:
    """Deletes data whose retention time is over.

    Args:
        results_kept_s: time after a job's end for which its inputs and results are kept.
    """

    def __init__(
        self,
        store: DataStore,
        journal: Journal,
        now: Callable[[], float],
        *,
        results_kept_s: float,
    ) -> None:
        self._store = store
        self._journal = journal
        self._now = now
        self._results_kept_s = results_kept_s

    async def run(self) -> NoReturn:
        """Delete expired data periodically, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (SynergaiError, OSError) as error:
                _log.warning("cannot delete old data, trying again in a minute: %s", error)
            await asyncio.sleep(_INTERVAL_S)

    async def sweep(self) -> None:
        """Delete data that has expired, unless it is in use."""
        uses = await self._journal.jobs_over_uploads()
        # There may be very many of them.
        unused, expired = await asyncio.to_thread(self._find_due, uses, self._store.stored())
        for key in unused:
            await self._delete(key, "no job used it")
        for key in expired:
            await self._delete(key, "its job ended long ago")

    def _find_due(
        self, uses: Sequence[UploadUse], stored: Mapping[DataKey, Stored]
    ) -> tuple[list[DataKey], list[DataKey]]:
        """Return the uploads that no job used in time, and the data of jobs that ended long ago."""
        now = self._now()
        used = {key for use in uses for key in _keys(use)}
        # A job that is being accepted holds its files open.
        unused = [
            key
            for key, each in stored.items()
            if key not in used and now - each.used_at > _UPLOADS_KEPT_S
        ]
        expired = [
            key
            for use in uses
            if use.finished_at is not None and now - use.finished_at > self._results_kept_s
            for key in _keys(use)
            if key in stored
        ]
        return unused, expired

    async def _delete(self, key: DataKey, reason: str) -> None:
        if key in self._store and await self._store.delete(key):
            _log.info("deleted %s %s: %s", key.kind, key.name, reason)


def _keys(use: UploadUse) -> Iterator[DataKey]:
    yield DataKey(use.tenant, "uploads", use.upload_id)
    yield DataKey(use.tenant, "results", use.job_id)
