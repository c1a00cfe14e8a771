"""Results of jobs over uploads, streamed to their clients."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.entry.access.caller import Caller, check_visible
from gateway.journal.data_store import DataKey, DataStore
from synergai.errors import InvalidInput, NotFound, Unavailable, WrongState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from gateway.jobs.submitted import SubmittedJobs

BATCH_BYTES: Final = 4 * 1024 * 1024 - 64 * 1024
"""Results in one message, unless a single one is larger."""
_BATCH_RESULTS: Final = 10_000


class SerializedResults(Struct, frozen=True):
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
    ) -> AsyncGenerator[SerializedResults, None]:
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
            rate = self._jobs.progress_rate
            time = asyncio.get_running_loop().time
            next_at = time()
            with ExitStack() as stack:
                changed = asyncio.Event()
                if tracker is not None:
                    changed = stack.enter_context(tracker.watching(rate))
                while True:
                    changed.clear()
                    state = None if tracker is None else tracker.state
                    stored = len(opened.log)
                    found = await asyncio.to_thread(
                        opened.log.read, cursor, _BATCH_RESULTS, BATCH_BYTES
                    )
                    check_visible(caller, status)
                    if found:
                        await self._confirm()
                        cursor += len(found)
                        next_at = time() + rate.interval_s()
                        yield SerializedResults(found, cursor)
                        if cursor < stored:
                            continue
                    if tracker is None or state is None or state.ended:
                        return
                    await tracker.next_change(changed, state, next_at)
        finally:
            await self._store.release(opened)
