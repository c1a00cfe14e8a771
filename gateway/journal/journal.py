"""The journal: what the gateway promised is on disk before it is promised.

One thread owns the one connection. It takes everything that is queued, carries it out in one
transaction, and reports back when that is durable: many operations share one sync of the disk.
Operations are carried out in the order in which they were asked for.

The schema itself refuses to record a query twice, to record beyond a job's queries, or to
record anything of a job that has ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import apsw

from gateway.journal import operations, schema
from synergai.errors import InternalFault, SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from gateway.jobs.executions import Execution
    from gateway.jobs.status import JobStatus
    from synergai.domain import AssignmentId, EngineName, JobId, JobSpec, JobState

    Operation: TypeAlias = Callable[[apsw.Connection], object]

T = TypeVar("T")

KEPT_JOBS: Final = 100_000
"""How many ended jobs are kept; beyond, the oldest are forgotten."""
_FORGET_EVERY: Final = 256


class JournalBroken(InternalFault):
    """The journal cannot be written; nothing may be promised any more."""


class _Asked(NamedTuple):
    operation: Operation
    future: asyncio.Future[object]


class Journal:
    """The durable record of jobs in one state directory.

    Args:
        directory: made if it is missing; belongs to one gateway at a time.
        kept_jobs: how many ended jobs to remember.

    Attributes:
        epoch: counts the times that the journal was opened; from 1.
        broken: done as soon as the journal cannot be written any more, with the cause.

    Raises:
        Unavailable: another gateway uses the directory, or it cannot be written.
        JournalBroken: what is there is not a journal of this version.
    """

    def __init__(self, directory: Path, *, kept_jobs: int = KEPT_JOBS) -> None:
        self._loop = asyncio.get_running_loop()
        self.broken: asyncio.Future[JournalBroken] = self._loop.create_future()
        self._kept_jobs = kept_jobs
        self._ended = 0
        self._pending = 0
        self._queue: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._lock = _lock(directory)
        try:
            self._connection = schema.open_database(directory / "journal.db")
            self.epoch = schema.next_epoch(self._connection)
        except (apsw.Error, schema.WrongVersion) as error:
            os.close(self._lock)
            raise JournalBroken(f"{directory / 'journal.db'} cannot be used: {error}") from error
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Write what is queued, and let go of the directory."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()
        os.close(self._lock)

    # --- operations, durable when their future is done ------------------------------------

    def accept(self, status: JobStatus, key: str = "") -> asyncio.Future[JobId]:
        """Record a new job; its id, or that of the job which had the same key before.

        Raises (the future):
            IdempotencyConflict: the key was used for another specification.
        """
        return self._ask(partial(operations.accept, status=status, key=key))

    def accepted(self, spec: JobSpec, key: str) -> asyncio.Future[JobId | None]:
        """The job that was accepted under a key, if one was.

        Raises (the future):
            IdempotencyConflict: the key was used for another specification.
        """
        return self._ask(partial(operations.accepted, spec=spec, key=key))

    def dispatched(self, status: JobStatus) -> asyncio.Future[None]:
        """Record that the job runs, since when, and what was estimated."""
        return self._ask(partial(operations.dispatched, status=status))

    def record(
        self, job_id: JobId, assignment_id: AssignmentId, execution: Execution
    ) -> asyncio.Future[None]:
        """Record what is done of an assignment, all from its start.

        Raises (the future):
            InternalFault: a query in it is recorded already under another assignment, is beyond
                the job, or the job has ended. Nothing is changed then.
        """
        return self._ask(
            partial(
                operations.record, job_id=job_id, assignment_id=assignment_id, execution=execution
            )
        )

    def end(self, status: JobStatus) -> asyncio.Future[None]:
        """Record how and when the job ended."""
        self._ended += 1
        if self._ended % _FORGET_EVERY == 0:
            self._ask(partial(operations.forget, kept=self._kept_jobs))
        return self._ask(partial(operations.end, status=status))

    def remember(self, engines: Iterable[EngineName]) -> asyncio.Future[None]:
        """Record that these engines exist, whether or not a worker is there to serve them."""
        return self._ask(partial(operations.remember, engines=tuple(engines)))

    def mark(self, engine: EngineName, *, unloaded: bool) -> asyncio.Future[None]:
        """Record whether an engine is unloaded, on a client's word."""
        return self._ask(partial(operations.mark, engine=engine, unloaded=unloaded))

    # --- questions ------------------------------------------------------------------------

    def engines(self) -> asyncio.Future[frozenset[EngineName]]:
        """Every engine that was ever remembered."""
        return self._ask(operations.engines)

    def unloaded(self) -> asyncio.Future[frozenset[EngineName]]:
        """Every engine that is unloaded."""
        return self._ask(operations.unloaded)

    def job(self, job_id: JobId, as_of: float) -> asyncio.Future[JobStatus | None]:
        """The job as it is recorded, if it is."""
        return self._ask(partial(operations.job, job_id=job_id, as_of=as_of))

    def unfinished(self, as_of: float) -> asyncio.Future[list[JobStatus]]:
        """Jobs that have not ended, in order of acceptance."""
        return self._ask(partial(operations.unfinished, as_of=as_of))

    def ended(
        self, states: Collection[JobState], limit: int, as_of: float
    ) -> asyncio.Future[list[JobStatus]]:
        """The newest jobs that have ended, in one of `states`, newest first."""
        return self._ask(partial(operations.ended, states=tuple(states), limit=limit, as_of=as_of))

    def after_pending(self, callback: Callable[[], None]) -> None:
        """Call `callback` once all that was asked for before is done; at once if nothing is."""
        if not self._pending:
            callback()
            return
        self._ask(operations.nothing).add_done_callback(lambda _: callback())

    # --- the writer -----------------------------------------------------------------------

    def _ask(self, operation: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self.broken.done():
            future.set_exception(self.broken.result())
            future.exception()
            return future
        self._pending += 1
        future.add_done_callback(self._settle)
        self._queue.put(_Asked(operation, future))  # type: ignore[arg-type]  # futures are invariant
        return future

    def _settle(self, _future: asyncio.Future[Any]) -> None:
        # The first callback of each future: the caller's own ones follow before anything else
        # on the loop, so that nothing slips in between a result and what it leads to.
        self._pending -= 1

    def _run(self) -> None:
        closing = False
        while not closing:
            batch: list[_Asked] = []
            asked = self._queue.get()
            while asked is not None:
                batch.append(asked)
                try:
                    asked = self._queue.get_nowait()
                except queue.Empty:
                    break
            closing = asked is None
            if batch:
                outcomes = self._commit(batch)
                self._loop.call_soon_threadsafe(self._report, batch, outcomes)

    def _commit(self, batch: list[_Asked]) -> list[object]:
        """Carry out the batch in one transaction; a result or an exception for each."""
        outcomes: list[object] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for asked in batch:
                try:
                    outcomes.append(asked.operation(self._connection))
                except SynergaiError as error:  # raised before anything was changed
                    outcomes.append(error)
            self._connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            with suppress(apsw.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            broken = JournalBroken(f"the journal cannot be written: {error}")
            return [broken] * len(batch)
        return outcomes

    def _report(self, batch: list[_Asked], outcomes: list[object]) -> None:
        for asked, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, JournalBroken) and not self.broken.done():
                self.broken.set_result(outcome)
            if asked.future.done():
                continue
            if isinstance(outcome, Exception):
                asked.future.set_exception(outcome)
                if isinstance(outcome, JournalBroken):
                    asked.future.exception()  # said once, by `broken`, and not for every future
            else:
                asked.future.set_result(outcome)


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot write to {directory}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Unavailable(
            f"another gateway uses the state directory {directory}; choose another one (--state)"
        ) from None
    return descriptor
