"""Files of the jobs over uploads: opened for a job, and released after it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from gateway.jobs.input_feed import JobData
from gateway.journal.errors import StoreFull
from gateway.journal.records.log import DamagedLog, is_out_of_space
from gateway.journal.records.results import ResultLog
from gateway.journal.records.store import DataKey
from synergai.errors import InvalidInput, Unavailable, UploadUsed

if TYPE_CHECKING:
    from gateway.jobs.uploads import InputUploads
    from gateway.journal.job_record import RecordedJob
    from gateway.journal.journal import Journal
    from gateway.journal.records.store import DataStore, OpenLog
    from synergai.domain import JobSpec


class OwnInputs:
    """What `SubmittedJobs` needs for jobs over uploads."""

    def __init__(self, store: DataStore, uploads: InputUploads, journal: Journal) -> None:
        self._store = store
        self._uploads = uploads
        self._journal = journal
        self.answered = 0
        self.failed = 0

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
        """Release the files of a job that has ended."""
        await self._store.release(data.results_log)
        await self._store.release(data.inputs)

    def count(self, data: JobData, answered: int, failed: int) -> None:
        """Count results that a job has stored."""
        self.answered += answered
        self.failed += failed
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
