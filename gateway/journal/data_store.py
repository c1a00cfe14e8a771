"""Uploads and results of jobs: their logs below the state directory, and the results in a log."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from gateway.journal.record_log import DamagedLog, Record, RecordLog, remove_log
from synergai.errors import Conflict
from synergai.runtime.files import make_directory, sync_path
from synergai.runtime.tasks import TaskBag
from synergai.v1.jobs_pb2 import JobResult
from synergai.wire.request_codec import field_prefix

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from synergai.wire.request_codec import Buffer

Kind: TypeAlias = Literal["uploads", "results"]

DIRECTORY: Final = "data"
_TENANT: Final = "tenant-"
"""Precedes the name of a tenant's directory, as the name of the default tenant is empty."""
_KINDS: Final[tuple[Kind, ...]] = ("uploads", "results")

_NONE: Final = 0
_ANSWERED: Final = 1
_FAILED: Final = 2
_RESPONSE: Final = JobResult.RESPONSE_FIELD_NUMBER


class DataKey(NamedTuple):
    """Name of a log: that of its upload or job, which is safe in paths."""

    tenant: str
    kind: Kind
    name: str


class Stored(NamedTuple):
    """A log in the store."""

    bytes: int
    used_at: float


class OpenLog:
    """A log that is in use. One thread at a time writes it, with the lock held.

    Attributes:
        takers: number of jobs that use the upload, or are about to; nothing can be added then.
        user: id of the job that used the upload, if known; nothing can be added then, either.
    """

    def __init__(self, key: DataKey, log: RecordLog) -> None:
        self.key = key
        self.log = log
        self.lock = threading.Lock()
        self.users = 0
        self.takers = 0
        self.user = ""


class _Usage(NamedTuple):
    """Size and number of the logs of one kind that a tenant has."""

    bytes: int
    logs: int


class _KeyLock(asyncio.Lock):
    """Lock of one log, and the number of those who use it."""

    users = 0


class DataStore:
    """Owner of the logs; in a directory that gateways share, as long as its epoch lasts."""

    def __init__(
        self, directory: Path, clock: Callable[[], float] = time.time, epoch: int = 0
    ) -> None:
        self._directory = directory
        self._epoch = epoch
        self._clock = clock
        self._stored: dict[DataKey, Stored] = {}
        self._usage: dict[tuple[str, Kind], _Usage] = {}
        self._open: dict[DataKey, OpenLog] = {}
        # One for each log, as a large one takes long to open.
        self._locks: dict[DataKey, _KeyLock] = {}
        self._tasks = TaskBag()

    async def load(self) -> None:
        for key, stored in (await asyncio.to_thread(self._scan)).items():
            self._set(key, stored)

    async def close(self) -> None:
        await self._tasks.wait()
        for opened in list(self._open.values()):
            async with self._locked(opened.key):
                if self._open.pop(opened.key, None) is not None:
                    await asyncio.to_thread(_close, opened)

    def bytes_of(self, tenant: str) -> int:
        return sum(self._used(tenant, kind).bytes for kind in _KINDS)

    def bytes_in(self, kind: Kind) -> int:
        return sum(usage.bytes for (_, each), usage in self._usage.items() if each == kind)

    def count(self, tenant: str, kind: Kind) -> int:
        return self._used(tenant, kind).logs

    def stored(self) -> dict[DataKey, Stored]:
        return dict(self._stored)

    def __contains__(self, key: DataKey) -> bool:
        return key in self._stored

    def update(self, opened: OpenLog) -> None:
        """Count what was written to a log in use."""
        if opened.key in self._stored:
            self._set(opened.key, Stored(opened.log.bytes, self._clock()))

    async def open(self, key: DataKey, *, create: bool = False) -> OpenLog:
        """Return a log to use until `release`.

        The thread that opens it cannot be stopped, so a cancelled call waits for it. Otherwise it
        might cut what others write to the log.
        """
        opening = self._tasks.start_awaited(self._use(key, create=create))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if opening.exception() is None:
                await self.release(opening.result())
            raise

    async def _use(self, key: DataKey, *, create: bool) -> OpenLog:
        async with self._locked(key):
            opened = self._open.get(key)
            if opened is None:
                if key not in self._stored and not create:
                    raise FileNotFoundError(key)
                log = await asyncio.to_thread(RecordLog, self._path(key), epoch=self._epoch)
                opened = self._open[key] = OpenLog(key, log)
                stored = self._stored.get(key)
                self._set(key, Stored(log.bytes, stored.used_at if stored else self._clock()))
            opened.users += 1
            return opened

    async def release(self, opened: OpenLog) -> None:
        """End a use of a log, also if the call is cancelled; delete an upload without inputs."""
        await self._tasks.complete(self._release(opened))

    async def _release(self, opened: OpenLog) -> None:
        released = False
        while not released:
            key = opened.key
            async with self._locked(key):
                if opened.key == key:  # it was not moved while the lock was awaited
                    await self._end_use(opened)
                    released = True

    async def _end_use(self, opened: OpenLog) -> None:
        opened.users -= 1
        if not opened.users and self._open.get(opened.key) is opened:
            del self._open[opened.key]
            await asyncio.to_thread(_close, opened)
            if opened.key.kind == "uploads" and not len(opened.log):
                await self._remove(opened.key)

    async def delete(self, key: DataKey) -> bool:
        """Delete a log; return False if it is in use."""
        async with self._locked(key):
            if key in self._open:
                return False
            await self._remove(key)
            return True

    async def move(self, opened: OpenLog, tenant: str) -> None:
        """Give a log in use to another tenant."""
        while (before := opened.key).tenant != tenant:
            after = before._replace(tenant=tenant)
            async with AsyncExitStack() as stack:
                # In one order, so that moves in both directions do not wait for each other.
                for key in sorted((before, after)):
                    await stack.enter_async_context(self._locked(key))
                if opened.key == before:
                    await self._move(opened, after)

    async def _move(self, opened: OpenLog, after: DataKey) -> None:
        if after in self._stored:
            raise Conflict(
                f"tenant {after.tenant!r} already has an upload {after.name!r}: upload the inputs "
                "under another id"
            )
        before = opened.key
        await asyncio.to_thread(self._rename, opened, after)
        self._set(after, self._stored[before])
        self._unset(before)
        del self._open[before]
        opened.key = after
        self._open[after] = opened

    @asynccontextmanager
    async def _locked(self, key: DataKey) -> AsyncGenerator[None]:
        """Let one operation at a time open, close, move or delete a log."""
        lock = self._locks.setdefault(key, _KeyLock())
        lock.users += 1
        try:
            async with lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[key]

    async def _remove(self, key: DataKey) -> None:
        if key in self._stored:
            with suppress(OSError):
                await asyncio.to_thread(remove_log, self._path(key), self._epoch)
            self._unset(key)

    def _set(self, key: DataKey, stored: Stored) -> None:
        self._unset(key)
        self._stored[key] = stored
        used = self._used(key.tenant, key.kind)
        self._usage[key.tenant, key.kind] = _Usage(used.bytes + stored.bytes, used.logs + 1)

    def _unset(self, key: DataKey) -> None:
        before = self._stored.pop(key, None)
        if before is not None:
            used = self._usage.pop((key.tenant, key.kind))
            if used.logs > 1:
                left = _Usage(used.bytes - before.bytes, used.logs - 1)
                self._usage[key.tenant, key.kind] = left

    def _used(self, tenant: str, kind: Kind) -> _Usage:
        return self._usage.get((tenant, kind), _Usage(0, 0))

    # --- files ----------------------------------------------------------------------------

    def _path(self, key: DataKey) -> Path:
        return self._directory / f"{_TENANT}{key.tenant}" / key.kind / key.name

    def _scan(self) -> dict[DataKey, Stored]:
        found = {}
        for folder in self._directory.glob(f"{_TENANT}*"):
            for kind in _KINDS:
                for log in (folder / kind).glob("*"):
                    if not log.is_dir():
                        continue
                    files = [file.stat() for file in log.iterdir()]
                    used_at = max((each.st_mtime for each in files), default=log.stat().st_mtime)
                    size = sum(each.st_size for each in files)
                    key = DataKey(folder.name.removeprefix(_TENANT), kind, log.name)
                    found[key] = Stored(size, used_at)
        return found

    def _rename(self, opened: OpenLog, after: DataKey) -> None:
        before, target = self._path(opened.key), self._path(after)
        make_directory(target.parent)
        with opened.lock:
            before.rename(target)
            opened.log.directory = target
        sync_path(before.parent)
        sync_path(target.parent)


def _close(opened: OpenLog) -> None:
    with opened.lock:
        opened.log.close()


class InputResult(Struct, frozen=True):
    """Outcome of one input: a serialised ``ModelInferResponse``, or why it failed."""

    index: int
    name: str
    response: Buffer = b""
    error: str = ""


class ResultLog:
    """The results of a job: at most one for each input.

    A record is a serialised ``JobResult``; its tag holds the index, and whether the input failed.
    """

    def __init__(self, log: RecordLog, queries: int) -> None:
        self.log = log
        self._outcomes = bytearray(queries)
        for tag in log.tags():
            index, outcome = tag >> 1, _FAILED if tag & 1 else _ANSWERED
            if index >= queries or self._outcomes[index]:
                raise DamagedLog(f"{log.directory} has two results of input {index}, or too many")
            self._outcomes[index] = outcome

    def __len__(self) -> int:
        """Return the number of durable results."""
        return len(self.log)

    def append(self, results: Sequence[InputResult]) -> None:
        """Write results, except for inputs that already have one."""
        new = {result.index: result for result in results if not self._outcomes[result.index]}
        self.log.append(_records(new.values()))
        for index, result in new.items():
            self._outcomes[index] = _FAILED if result.error else _ANSWERED

    def sync(self) -> None:
        self.log.sync()

    def failures(self, first: int, stop: int) -> int:
        """Return the number of the results ``[first, stop)`` that are failures."""
        return self._outcomes.count(_FAILED, first, stop)

    def lacks(self, first: int, stop: int) -> bool:
        """Return whether one of the results ``[first, stop)`` is missing."""
        return self._outcomes.find(_NONE, first, stop) >= 0


def _records(results: Iterable[InputResult]) -> Iterator[Record]:
    for result in results:
        message = JobResult(index=result.index, name=result.name)
        if result.error:
            message.error = result.error
            yield Record(result.index << 1 | 1, (message.SerializeToString(),))
        else:
            prefix = field_prefix(_RESPONSE, len(result.response))
            parts = (message.SerializeToString() + prefix, result.response)
            yield Record(result.index << 1, parts)
