"""Write-ahead journal: jobs and results are on disk before they are acknowledged.

A writer thread owns the store, which is the only connection to the database. It commits all queued
operations in one transaction, in order, and then resolves their futures, so many operations share
one disk sync.

While the disk is full, writes fail with `StoreFull`, reads are answered, and the thread looks for
space. Any other failure to write breaks the journal for good.

The schema rejects recording a query twice, queries beyond a job's range, and queries of a job
that has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from gateway.journal import operations
from gateway.journal.files import RESERVE, Reserve, Space, lock
from gateway.journal.sqlite_store import SqliteStore
from gateway.journal.store import Connection, JournalBroken, Operation, Store, StoreFull
from synergai.runtime.clock import Clock
from synergai.runtime.database import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gateway.journal.data_store import InputResult, ResultLog
    from gateway.journal.job_record import RecordedExecution, RecordedJob
    from synergai.domain import AssignmentId, JobId
    from synergai.jobs import JobSpec

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

KEPT_JOBS: Final = 100_000
"""Ended jobs that are kept by default; older ones are deleted."""
_PURGE_EVERY: Final = 256
_PROBE_S: Final = 1.0
"""Seconds between two looks for space on a full disk."""


class _Results(NamedTuple):
    """Results to be made durable before an operation records them."""

    sink: ResultLog
    results: Sequence[InputResult]


class _QueuedOperation(NamedTuple):
    operation: Operation
    future: asyncio.Future[object]
    writes: bool
    results: _Results | None = None


def _method(
    operation: Callable[Concatenate[Connection, P], T], *, writes: bool
) -> Callable[Concatenate[Journal, P], asyncio.Future[T]]:
    """Return the method that executes an operation; one that `writes` fails on a full disk."""

    @wraps(operation)
    def method(self: Journal, /, *args: P.args, **options: P.kwargs) -> asyncio.Future[T]:
        return self._enqueue(
            lambda connection: operation(connection, *args, **options), writes=writes
        )

    return method


class Journal:
    """Durable record of jobs of the gateway that locks a state directory, or leads a database.

    `broken` is done once the journal can no longer be written, with the cause.

    Args:
        store: database, closed with the journal; by default a file in the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        kept_jobs: int = KEPT_JOBS,
        clock: Clock | None = None,
        store: Store | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[JournalBroken] = self._loop.create_future()
        self.space = Space.AMPLE
        self._space_changed = asyncio.Event()
        self._clock = clock or Clock()
        self._kept_jobs = kept_jobs
        self._ended = 0
        self._pending = 0
        self._queue: queue.SimpleQueue[_QueuedOperation | None] = queue.SimpleQueue()
        with ExitStack() as stack:
            if store is not None:
                stack.callback(store.close)
            else:
                stack.callback(os.close, lock(directory))
            self._reserve = Reserve(directory / RESERVE)
            if store is None:
                store = self._open(directory)
                stack.callback(store.close)
            self._store = store
            self.epoch = self._store.epoch
            self.cluster = self._store.cluster
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
            self._resources = stack.pop_all()

    def _open(self, directory: Path) -> SqliteStore:
        try:
            return SqliteStore(directory, self._clock)
        except StoreFull:
            self._reserve.release()
            return SqliteStore(directory, self._clock)

    async def close(self) -> None:
        """Commit queued operations, close the database and unlock the directory."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._resources.close)

    # --- writes, durable once their future is done --------------------------------------------

    def accept(
        self,
        record: RecordedJob,
        key: str = "",
        asked: JobSpec | None = None,
        inputs_digest: int | None = None,
    ) -> asyncio.Future[JobId]:
        """Record a new job; return its id, or that of the earlier job with the same key.

        Jobs under the same key have to repeat what was asked for, before the gateway chose the
        rest.
        """
        return self._enqueue(operations.Accept(record, key, asked, inputs_digest), writes=True)

    def record_results(
        self,
        job_id: JobId,
        assignment_id: AssignmentId,
        execution: RecordedExecution,
        sink: ResultLog,
        results: Sequence[InputResult],
    ) -> asyncio.Future[RecordedExecution]:
        """Record the completed queries of an assignment, after their results are durable.

        Results of many operations share a sync as well. After a crash between the two, the queries
        run again, and the sink leaves their second results out.
        """

        def record(connection: Connection) -> RecordedExecution:
            failures = sink.failures(execution.first, execution.stop)
            counted = replace(execution, failures=failures)
            operations.record_execution(connection, job_id, assignment_id, counted)
            return counted

        return self._enqueue(record, writes=True, results=_Results(sink, results))

    def record_end(self, record: RecordedJob) -> asyncio.Future[None]:
        self._ended += 1
        if self._ended % _PURGE_EVERY == 0:
            self._purge(self._kept_jobs)
        return self._record_end(record)

    record_dispatch = _method(operations.record_dispatch, writes=True)
    record_execution = _method(operations.record_execution, writes=True)
    _record_end = _method(operations.record_end, writes=True)
    _purge = _method(operations.purge, writes=True)
    add_engines = _method(operations.add_engines, writes=True)
    remove_engines = _method(operations.remove_engines, writes=True)
    forget_engines = _method(operations.forget_engines, writes=True)
    set_unloaded = _method(operations.set_unloaded, writes=True)
    set_description = _method(operations.set_description, writes=True)
    change_documents = _method(operations.change_documents, writes=True)

    # --- reads --------------------------------------------------------------------------------

    find_accepted = _method(operations.find_accepted, writes=False)
    find_job = _method(operations.find_job, writes=False)
    unfinished_jobs = _method(operations.unfinished_jobs, writes=False)
    ended_jobs = _method(operations.ended_jobs, writes=False)
    upload_user = _method(operations.upload_user, writes=False)
    jobs_over_uploads = _method(operations.jobs_over_uploads, writes=False)
    engines = _method(operations.engines, writes=False)
    forgotten_engines = _method(operations.forgotten_engines, writes=False)
    unloaded_engines = _method(operations.unloaded_engines, writes=False)
    descriptions = _method(operations.descriptions, writes=False)
    documents = _method(operations.documents, writes=False)

    async def confirm(self) -> None:
        """Check that no other gateway has taken over, before what is in files is acknowledged."""
        if self.cluster:
            await self._enqueue(operations.confirm)

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all earlier operations are done; at once if there are none."""
        if not self._pending:
            callback()
            return
        self._enqueue(lambda _connection: None).add_done_callback(lambda _: callback())

    def fail(self, error: OSError) -> None:
        """Break the journal, because the disk has failed elsewhere; what it has kept is unknown."""
        if not self.broken.done():
            self.broken.set_result(_broken(error))

    # --- space --------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether there is room for new jobs."""
        return self.space is Space.AMPLE

    @property
    def writable(self) -> bool:
        """Whether the progress of accepted jobs can be recorded."""
        return self.space is not Space.FULL

    async def wait_space_changed(self) -> None:
        """Wait until `space` has changed since the last call."""
        await self._space_changed.wait()
        self._space_changed.clear()

    def _set_space(self, space: Space) -> None:
        if space is self.space:
            return
        self.space = space
        self._space_changed.set()
        if space is Space.AMPLE:
            _log.info("the disk of %s has room again: accepting jobs", self._store.place)
        else:
            done = "recorded in the reserve" if space is Space.RESERVE else "paused"
            _log.warning(
                "the disk of %s is full: jobs are refused, accepted ones %s; free space there",
                self._store.place,
                done,
            )

    # --- writer thread ------------------------------------------------------------------------

    def _enqueue(
        self,
        operation: Callable[[Connection], T],
        *,
        writes: bool = False,
        results: _Results | None = None,
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self.broken.done():
            future.set_exception(self.broken.result())
            future.exception()
            return future
        self._pending += 1
        future.add_done_callback(self._on_settled)
        self._queue.put(_QueuedOperation(operation, future, writes, results))  # type: ignore[arg-type]  # futures are invariant
        return future

    def _on_settled(self, _future: asyncio.Future[Any]) -> None:
        # Registered first, so it runs right before the caller's callbacks: nothing else on the
        # loop runs between a result and its consequences.
        self._pending -= 1

    def _run(self) -> None:
        space = self._find_space()
        self._loop.call_soon_threadsafe(self._set_space, space)
        closing = False
        while not closing:
            space, closing = self._run_next(space)

    def _run_next(self, space: Space) -> tuple[Space, bool]:
        """Wait for operations and execute them; return the space left, and whether to stop.

        The thread may wait for long, and keeps no results while it does: many jobs take megabytes.
        """
        batch: list[_QueuedOperation] = []
        closing = False
        with suppress(queue.Empty):
            item = self._queue.get(timeout=None if space is Space.AMPLE else _PROBE_S)
            while item is not None:
                batch.append(item)
                item = self._queue.get_nowait()
            closing = True
        if space is not Space.AMPLE:
            space = self._find_space(space)
        if batch:
            space, outcomes = self._commit(batch, space)
            self._loop.call_soon_threadsafe(self._deliver, batch, outcomes, space)
        elif not closing:
            self._loop.call_soon_threadsafe(self._set_space, space)
        return space, closing

    def _find_space(self, otherwise: Space = Space.RESERVE) -> Space:
        return Space.AMPLE if self._reserve.take() and self._store.has_room() else otherwise

    def _commit(self, batch: list[_QueuedOperation], space: Space) -> tuple[Space, list[object]]:
        """Execute the batch; return the space left, and a result or an exception per operation."""
        if space is not Space.FULL:
            try:
                return space, self._execute(batch)
            except Exception as error:  # noqa: BLE001 - every future must be resolved
                full = self._store.is_full(error)
                self._store.roll_back()
                if not full:
                    return space, [_broken(error)] * len(batch)
            if self._reserve.release():
                return self._commit(batch, Space.RESERVE)
        return Space.FULL, self._read_only(batch)

    def _execute(self, batch: list[_QueuedOperation]) -> list[object]:
        """Execute the batch in one transaction; return a result or an exception per operation."""
        _write_results(batch)
        return self._store.execute([item.operation for item in batch])

    def _read_only(self, batch: list[_QueuedOperation]) -> list[object]:
        """Execute the reads of the batch; the writes fail, all of them, so that none is skipped."""
        try:
            results = iter(self._execute([item for item in batch if not item.writes]))
        except Exception as error:  # noqa: BLE001 - every future must be resolved
            failure = StoreFull() if self._store.is_full(error) else _broken(error)
            self._store.roll_back()
            return [failure] * len(batch)
        return [StoreFull() if item.writes else next(results) for item in batch]

    def _deliver(self, batch: list[_QueuedOperation], outcomes: list[object], space: Space) -> None:
        self._set_space(space)
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, JournalBroken) and not self.broken.done():
                self.broken.set_result(outcome)
            if item.future.done():
                continue
            if isinstance(outcome, Exception):
                item.future.set_exception(outcome)
                if isinstance(outcome, (JournalBroken, StoreFull)):
                    item.future.exception()  # reported once, by `broken` or the change of space
            else:
                item.future.set_result(outcome)


def _write_results(batch: list[_QueuedOperation]) -> None:
    """Make the results of the batch durable, with one sync for each sink."""
    written = [item.results for item in batch if item.results is not None]
    for sink, results in written:
        sink.append(results)
    for sink in {id(sink): sink for sink, _ in written}.values():
        sink.sync()


def _broken(error: Exception) -> JournalBroken:
    if isinstance(error, JournalBroken):
        return error
    return JournalBroken(f"the journal cannot be written: {describe(error)}")
