"""``synergai.v1.Jobs``: jobs of many queries with a QoS time, and their results."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.entry.access.caller import Caller, Role, check_visible, current_caller
from gateway.journal.data_store import DataKey, DataStore
from gateway.journal.job_record import PROGRESS_INTERVAL_S
from synergai.errors import InvalidInput, NotFound, Unavailable, WrongState
from synergai.jobs import JobState
from synergai.v1 import jobs_pb2
from synergai.wire import rpc
from synergai.wire.converters import job_spec_from_proto, job_status_to_proto
from synergai.wire.request_codec import field_prefix

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from gateway.jobs.submitted import SubmittedJobs
    from gateway.jobs.uploads import InputUploads
    from synergai.wire.memory_bounds import UnreadResponses
    from synergai.wire.server_call import ServerCall

_BATCH_BYTES: Final = 4 * 1024 * 1024 - 64 * 1024
"""Results in one message, unless a single one is larger."""
_BATCH_RESULTS: Final = 10_000
_DEFAULT_LISTED: Final = 100
_RESULTS: Final = jobs_pb2.ResultBatch.RESULTS_FIELD_NUMBER


class _SerializedResults(Struct, frozen=True):
    """Serialised ``JobResult`` messages, and the cursor behind them."""

    results: Sequence[bytes]
    cursor: int


class JobResults:
    """Reader of the results of all jobs over uploads."""

    def __init__(
        self, jobs: SubmittedJobs, store: DataStore, confirm: Callable[[], Awaitable[None]]
    ) -> None:
        self._jobs = jobs
        self._store = store
        self._confirm = confirm

    async def read(
        self, caller: Caller, job_id: str, cursor: int, *, follow: bool
    ) -> AsyncGenerator[_SerializedResults, None]:
        """Yield the results of a job in the order in which they were stored.

        Only durable results are shown, and these never change. Nothing is read ahead of the client.
        The caller is checked again for each batch.
        """
        status = await self._jobs.get(caller, job_id)
        if not status.spec.upload_id:
            raise WrongState(f"job {job_id} ran on samples, and has no results to read")
        key = DataKey(status.spec.tenant, "results", status.id)
        job = self._jobs.unfinished(job_id)
        try:
            opened = await self._store.open(key)
        except FileNotFoundError:
            raise NotFound(f"the results of job {job_id} are no longer kept") from None
        except OSError as error:
            raise Unavailable(
                f"the results of job {job_id} cannot be read now: {error.strerror}; try later"
            ) from error
        try:
            if cursor > len(opened.log):
                raise InvalidInput(
                    f"the cursor {cursor:,} is beyond the {len(opened.log):,} results of job "
                    f"{job_id}"
                )
            tracker = job.tracker if follow and job is not None else None
            time = asyncio.get_running_loop().time
            next_at = time()
            with ExitStack() as stack:
                changed = asyncio.Event()
                if tracker is not None:
                    changed = stack.enter_context(tracker.watching())
                while True:
                    changed.clear()
                    state = None if tracker is None else tracker.state
                    stored = len(opened.log)
                    found = await asyncio.to_thread(
                        opened.log.read, cursor, _BATCH_RESULTS, _BATCH_BYTES
                    )
                    check_visible(caller, status)
                    if found:
                        await self._confirm()
                        cursor += len(found)
                        next_at = time() + PROGRESS_INTERVAL_S
                        yield _SerializedResults(found, cursor)
                        if cursor < stored:
                            continue
                    if tracker is None or state is None or state.ended:
                        return
                    await tracker.next_change(changed, state, next_at)
        finally:
            await self._store.release(opened)


class JobsServicer:
    """Serves ``synergai.v1.Jobs``."""

    def __init__(
        self,
        jobs: SubmittedJobs,
        uploads: InputUploads,
        results: JobResults,
        unread: UnreadResponses,
    ) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._results = results
        self._unread = unread
        self._calls = rpc.SlowCalls()
        # A list has up to 1,000 jobs: lists made at the same time would need the memory of all.
        self._listing = asyncio.Lock()

    def handler(self) -> rpc.Service:
        return rpc.Service(
            "synergai.v1.Jobs",
            {
                "Submit": rpc.unary(self.submit, jobs_pb2.SubmitRequest),
                "Watch": rpc.server_stream(self.watch, jobs_pb2.WatchRequest),
                "Get": rpc.unary(self.get, jobs_pb2.GetRequest),
                "List": rpc.unary(self.list, jobs_pb2.ListRequest),
                "Cancel": rpc.unary(self.cancel, jobs_pb2.CancelRequest),
                "Upload": rpc.bytes_stream(self.upload),
                "Results": rpc.server_stream(self.results, jobs_pb2.ResultsRequest),
            },
        )

    async def submit(self, request: jobs_pb2.SubmitRequest, _context: ServerCall) -> jobs_pb2.Job:
        spec = job_spec_from_proto(request.spec)
        inputs_digest = request.inputs_digest if request.HasField("inputs_digest") else None
        status = await self._jobs.submit(
            current_caller(), spec, request.idempotency_key, inputs_digest
        )
        return job_status_to_proto(status)

    async def watch(
        self, request: jobs_pb2.WatchRequest, _context: ServerCall
    ) -> AsyncGenerator[jobs_pb2.Job, None]:
        async with aclosing(self._jobs.watch(current_caller(), request.job_id)) as statuses:
            async for status in statuses:
                yield job_status_to_proto(status)

    async def get(self, request: jobs_pb2.GetRequest, _context: ServerCall) -> jobs_pb2.Job:
        return job_status_to_proto(await self._jobs.get(current_caller(), request.job_id))

    async def list(
        self, request: jobs_pb2.ListRequest, _context: ServerCall
    ) -> jobs_pb2.ListResponse:
        try:
            states = [JobState(state) for state in request.states]
        except ValueError:
            raise InvalidInput(f"states must be from 1 to {len(JobState)}") from None
        limit = request.limit or _DEFAULT_LISTED
        async with self._listing:
            found = await self._jobs.list(current_caller(), states, limit)
            return jobs_pb2.ListResponse(jobs=map(job_status_to_proto, found))

    async def cancel(self, request: jobs_pb2.CancelRequest, _context: ServerCall) -> jobs_pb2.Job:
        """Cancel a job at its next query boundary."""
        return job_status_to_proto(await self._jobs.cancel(current_caller(), request.job_id))

    async def upload(
        self, messages: AsyncIterator[bytes], _context: ServerCall
    ) -> AsyncGenerator[jobs_pb2.UploadReceipt, None]:
        caller = current_caller()
        receipts = self._uploads.upload(caller.tenant, messages, lambda: caller.check(Role.SUBMIT))
        async with aclosing(receipts) as stored:
            async for receipt in stored:
                yield jobs_pb2.UploadReceipt(stored=receipt.stored, digest=receipt.digest)

    async def results(
        self, request: jobs_pb2.ResultsRequest, context: ServerCall
    ) -> AsyncGenerator[bytes, None]:
        unread = self._unread.open(await self._calls.ending(context))
        batches = self._results.read(
            current_caller(), request.job_id, request.cursor, follow=request.follow
        )
        try:
            async with aclosing(batches) as found:
                async for batch in found:
                    data = _serialise(batch)
                    unread.add(len(data))
                    yield data
                    unread.remove(len(data))
                    del batch, data
        finally:
            unread.close()


def _serialise(batch: _SerializedResults) -> bytes:
    """Return the serialised ``ResultBatch``; the results are not parsed."""
    parts = [jobs_pb2.ResultBatch(cursor=batch.cursor).SerializeToString()]
    for result in batch.results:
        parts += (field_prefix(_RESULTS, len(result)), result)
    return b"".join(parts)
