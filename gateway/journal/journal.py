"""Write-ahead journal: jobs and results are on disk before they are acknowledged.

A writer thread owns the only database connection. It commits all queued operations in one
transaction, in order, and then resolves their futures, so many operations share one disk sync.

The schema rejects recording a query twice, queries beyond a job's range, and queries of a job
that has ended.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import apsw

from gateway.journal import operations, schema
from gateway.journal.database import describe
from gateway.journal.errors import JournalBroken
from gateway.journal.files import lock
from gateway.journal.opening import open_journal
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from gateway.jobs.executions import RecordedExecution
    from gateway.jobs.record import JobRecord
    from synergai.domain import AssignmentId, EngineName, JobId, JobSpec, JobState

    Operation: TypeAlias = Callable[[apsw.Connection], object]

T = TypeVar("T")

KEPT_JOBS: Final = 100_000
"""Default number of ended jobs to keep; older ones are deleted."""
_PURGE_EVERY: Final = 256


class _QueuedOperation(NamedTuple):
    operation: Operation
    future: asyncio.Future[object]


class Journal:
    """Durable record of jobs in a state directory.

    Args:
        directory: state directory, created if missing; locked by one gateway at a time.
        kept_jobs: number of ended jobs to keep.

    Attributes:
        epoch: number of times that the journal has been opened, from 1.
        broken: done once the journal cannot be written, with the cause.

    Raises:
        Unavailable: another gateway uses the directory, or it cannot be written.
        JournalDamaged: it lacks something that was acknowledged, or its content is corrupt.
        JournalBroken: the file is not a journal of this version.
    """

    def __init__(self, directory: Path, *, kept_jobs: int = KEPT_JOBS) -> None:
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[JournalBroken] = self._loop.create_future()
        self._kept_jobs = kept_jobs
        self._ended = 0
        self._pending = 0
        self._queue: queue.SimpleQueue[_QueuedOperation | None] = queue.SimpleQueue()
        with ExitStack() as stack:
            stack.callback(os.close, lock(directory))
            opened = open_journal(directory, stack)
            self._connection, self._marker, self.epoch, self._commits = opened
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
            self._resources = stack.pop_all()

    async def close(self) -> None:
        """Commit queued operations, close the database and unlock the directory."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._resources.close()

    # --- writes, durable once their future is done --------------------------------------------

    def accept(self, record: JobRecord, key: str = "") -> asyncio.Future[JobId]:
        """Record a new job; return its id, or that of the earlier job with the same key.

        Raises (the future):
            IdempotencyConflict: the key was used for another specification.
        """
        return self._enqueue(partial(operations.accept, record=record, key=key))

    def find_accepted(self, spec: JobSpec, key: str) -> asyncio.Future[JobId | None]:
        """Return the id of the job accepted under a key, if any.

        Raises (the future):
            IdempotencyConflict: the key was used for another specification.
        """
        return self._enqueue(partial(operations.find_accepted, spec=spec, key=key))

    def record_dispatch(self, record: JobRecord) -> asyncio.Future[None]:
        """Record the job's first dispatch and estimate."""
        return self._enqueue(partial(operations.record_dispatch, record=record))

    def record_execution(
        self, job_id: JobId, assignment_id: AssignmentId, execution: RecordedExecution
    ) -> asyncio.Future[None]:
        """Record the completed queries of an assignment; `execution` covers it from its start.

        Raises (the future):
            InternalError: a query is already recorded under another assignment or beyond the
                job's range, or the job has ended. Nothing is changed then.
        """
        return self._enqueue(
            partial(
                operations.record_execution,
                job_id=job_id,
                assignment_id=assignment_id,
                execution=execution,
            )
        )

    def record_end(self, record: JobRecord) -> asyncio.Future[None]:
        """Record the end of the job."""
        self._ended += 1
        if self._ended % _PURGE_EVERY == 0:
            self._enqueue(partial(operations.purge, kept=self._kept_jobs))
        return self._enqueue(partial(operations.record_end, record=record))

    def add_engines(self, engines: Iterable[EngineName]) -> asyncio.Future[None]:
        """Record engine names, so that they stay known without a worker."""
        return self._enqueue(partial(operations.add_engines, engines=tuple(engines)))

    def set_unloaded(self, engine: EngineName, *, unloaded: bool) -> asyncio.Future[None]:
        """Record whether an engine is unloaded."""
        return self._enqueue(partial(operations.set_unloaded, engine=engine, unloaded=unloaded))

    # --- reads --------------------------------------------------------------------------------

    def engines(self) -> asyncio.Future[frozenset[EngineName]]:
        """Return the names of all recorded engines."""
        return self._enqueue(operations.engines)

    def unloaded_engines(self) -> asyncio.Future[frozenset[EngineName]]:
        """Return the names of the unloaded engines."""
        return self._enqueue(operations.unloaded_engines)

    def find_job(self, job_id: JobId) -> asyncio.Future[JobRecord | None]:
        """Return the job as recorded, or None if it is unknown."""
        return self._enqueue(partial(operations.find_job, job_id=job_id))

    def unfinished_jobs(self) -> asyncio.Future[list[JobRecord]]:
        """Return the jobs that have not ended, in order of acceptance."""
        return self._enqueue(operations.unfinished_jobs)

    def ended_jobs(
        self,
        states: Collection[JobState],
        limit: int,
        wanted: Callable[[str, str], bool] = lambda _engine, _tenant: True,
    ) -> asyncio.Future[list[JobRecord]]:
        """Return the newest jobs that ended in one of `states`; see `JobStore.ended_jobs`."""
        return self._enqueue(
            partial(operations.ended_jobs, states=tuple(states), limit=limit, wanted=wanted)
        )

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all earlier operations are done; at once if there are none."""
        if not self._pending:
            callback()
            return
        self._enqueue(operations.no_op).add_done_callback(lambda _: callback())

    # --- writer thread ------------------------------------------------------------------------

    def _enqueue(self, operation: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self.broken.done():
            future.set_exception(self.broken.result())
            future.exception()
            return future
        self._pending += 1
        future.add_done_callback(self._on_settled)
        self._queue.put(_QueuedOperation(operation, future))  # type: ignore[arg-type]  # futures are invariant
        return future

    def _on_settled(self, _future: asyncio.Future[Any]) -> None:
        # Registered first, so it runs right before the caller's callbacks: nothing else on the
        # loop runs between a result and its consequences.
        self._pending -= 1

    def _run(self) -> None:
        closing = False
        while not closing:
            batch: list[_QueuedOperation] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            closing = item is None
            if batch:
                outcomes = self._commit(batch)
                self._loop.call_soon_threadsafe(self._deliver, batch, outcomes)

    def _commit(self, batch: list[_QueuedOperation]) -> list[object]:
        """Execute the batch in one transaction; return a result or an exception per operation."""
        outcomes: list[object] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            unchanged = self._connection.total_changes()
            for item in batch:
                try:
                    outcomes.append(item.operation(self._connection))
                except SynergaiError as error:  # raised before any change
                    outcomes.append(error)
            changed = self._connection.total_changes() != unchanged
            if changed:
                schema.count_commit(self._connection, self._commits + 1)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - every future must be resolved
            with suppress(apsw.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            broken = JournalBroken(f"the journal cannot be written: {describe(error)}")
            return [broken] * len(batch)
        if changed:
            self._commits += 1
            self._marker.advance(self._commits)
        return outcomes

    def _deliver(self, batch: list[_QueuedOperation], outcomes: list[object]) -> None:
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, JournalBroken) and not self.broken.done():
                self.broken.set_result(outcome)
            if item.future.done():
                continue
            if isinstance(outcome, Exception):
                item.future.set_exception(outcome)
                if isinstance(outcome, JournalBroken):
                    item.future.exception()  # reported once, by `broken`
            else:
                item.future.set_result(outcome)
