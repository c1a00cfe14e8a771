"""Uploads: the inputs of a job, stored by its client before it submits the job.

An upload belongs to its tenant. It is used by one job, and nothing can be added to it then.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError
from msgspec import Struct

from gateway.entry.audit import current_call
from gateway.journal.data_store import DataKey, DataStore, OpenLog
from gateway.journal.record_log import Record, is_out_of_space
from gateway.journal.store import StoreFull
from synergai.errors import (
    Conflict,
    InternalError,
    InvalidInput,
    Overloaded,
    Unavailable,
    UploadNotFound,
    UploadUsed,
)
from synergai.jobs import MAX_QUERIES
from synergai.names import validate_name
from synergai.runtime.tasks import TaskBag, run_to_end
from synergai.v1.jobs_pb2 import UploadRequest
from synergai.wire.job_inputs import chain_digest
from synergai.wire.request_codec import split_fields

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from gateway.entry.admission import Admission
    from gateway.journal.job_record import RecordedJob
    from gateway.journal.journal import Journal

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of an upload in memory, unless a single message is larger."""
FREE_BYTES: Final = 64 * 1024 * 1024
"""Room on the disk that uploads leave to the journal and to results."""
IDLE_S: Final = 300.0
"""Time without a message after which an upload is ended; its client may continue it."""
FIRST_S: Final = 30.0
"""Time within which the first message of an upload has to arrive."""
MAX_UPLOADS: Final = 100_000
"""Uploads of one tenant, those included that are kept for ended jobs."""
_NO_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE))
_MAX_INPUTS: Final = 65_536
"""Inputs of one message."""
_INPUTS: Final = UploadRequest.INPUTS_FIELD_NUMBER


class Receipt(NamedTuple):
    """What is stored of an upload; its digest is None if it was deleted after its job."""

    stored: int
    digest: int | None


class Message(Struct, frozen=True):
    """A parsed ``UploadRequest``; the inputs are serialised views of it."""

    upload_id: str
    first: int
    inputs: Sequence[memoryview]
    size: int


def parse(data: bytes) -> Message:
    """Parse a serialised ``UploadRequest`` without copying its inputs."""
    try:
        rest, (inputs,) = split_fields(data, _INPUTS, max_fields=_MAX_INPUTS)
        header = UploadRequest.FromString(rest)
    except DecodeError as error:
        raise InvalidInput(
            f"the message is not a valid synergai.v1.UploadRequest of at most {_MAX_INPUTS:,} "
            f"inputs: {error}"
        ) from None
    return Message(header.upload_id, header.first, inputs, len(data))


class InputUploads:
    """The uploads of all tenants.

    Args:
        memory_bytes: limit on the memory of open uploads. It is not that of requests: uploads
            whose clients send slowly, or nothing, must not keep requests from being accepted.
    """

    def __init__(
        self,
        store: DataStore,
        journal: Journal,
        admission: Admission,
        *,
        memory_bytes: int,
    ) -> None:
        self._store = store
        self._journal = journal
        self._admission = admission
        self._most_open = max(1, memory_bytes // AHEAD_BYTES)
        self._open: Counter[str] = Counter()

    async def upload(
        self, tenant: str, messages: AsyncIterator[bytes], check_caller: Callable[[], None]
    ) -> AsyncGenerator[Receipt, None]:
        """Store serialised ``UploadRequest``s; yield what is stored whenever it is durable."""
        opening = await self._first(messages)
        if opening is None:
            raise InvalidInput("the first message must name the upload")
        first = await asyncio.to_thread(parse, opening)
        key = DataKey(tenant, "uploads", validate_name(first.upload_id, "upload id"))
        if (call := current_call()) is not None:
            call.object = key.name
        self._admission.check_open()
        self._check_open(tenant)
        self._open[tenant] += 1
        try:
            user = await self._journal.upload_user(key.tenant, key.name)
            async with aclosing(_ReadAhead(messages).batches(opening)) as batches:
                del opening, first
                if user is not None and key not in self._store:
                    async for batch in batches:
                        yield await asyncio.to_thread(_repeated, user, batch)
                    return
                async with self._opened(key) as opened:
                    if user is not None:
                        opened.user = user.id
                    async for batch in batches:
                        check_caller()
                        if user is None:
                            self._check_room(tenant, sum(map(len, batch)))
                        receipt = await self._write(opened, batch)
                        await self._journal.confirm()
                        yield receipt
                        del batch
        finally:
            self._open -= Counter((tenant,))  # keeps no tenant without uploads

    async def take(self, tenants: Sequence[str], upload_id: str) -> OpenLog:
        """Return the upload of the first tenant that has it, for a job to use until `give_back`."""
        for tenant in dict.fromkeys(tenants):
            key = DataKey(tenant, "uploads", upload_id)
            try:
                opened = await self._store.open(key)
            except FileNotFoundError:
                continue
            opened.takers += 1
            try:
                if tenant != tenants[0]:
                    await self._store.move(opened, tenants[0])
                await asyncio.to_thread(_wait_written, opened)
            except BaseException:
                await self.give_back(opened)
                raise
            return opened
        raise UploadNotFound(upload_id)

    async def give_back(self, opened: OpenLog) -> None:
        """Release an upload that a job does not use after all; inputs can be added again."""
        opened.takers -= 1
        await self._store.release(opened)

    async def _first(self, messages: AsyncIterator[bytes]) -> bytes | None:
        try:
            async with asyncio.timeout(FIRST_S):
                return await anext(messages, None)
        except TimeoutError:
            raise Unavailable(
                f"no message has arrived for {FIRST_S:g} s; begin the upload once there is "
                "something to send"
            ) from None

    def _check_open(self, tenant: str) -> None:
        """Check that a tenant may open a further upload.

        Where there are several tenants, each may hold half of the uploads, so that no single one
        keeps the others out.
        """
        total, mine = self._open.total(), self._open[tenant]
        if total >= self._most_open:
            raise Overloaded(f"{total:,} uploads are open, the limit; try later")
        if self._admission.distinguishes_tenants and mine >= max(1, self._most_open // 2):
            raise Overloaded(
                f"{mine:,} uploads of the tenant are open, its share of {self._most_open:,}; try "
                "later"
            )

    @asynccontextmanager
    async def _opened(self, key: DataKey) -> AsyncGenerator[OpenLog]:
        kept = self._store.count(key.tenant, key.kind)
        if key not in self._store and kept >= MAX_UPLOADS:
            raise Overloaded(
                f"{kept:,} uploads of the tenant are kept, the limit; those of ended jobs go after "
                "the time of --results-kept-s"
            )
        try:
            opened = await self._store.open(key, create=True)
        except OSError as error:
            raise self._failure(error) from error
        try:
            yield opened
        finally:
            await self._store.release(opened)

    async def _write(self, opened: OpenLog, batch: Sequence[bytes]) -> Receipt:
        try:
            return await run_to_end(asyncio.to_thread(_store, opened, batch))
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._store.update(opened)

    def _check_room(self, tenant: str, size: int) -> None:
        self._admission.check_open()
        if not self._journal.accepting:
            raise StoreFull
        self._admission.check_stored(tenant, self._store.bytes_of(tenant), size)

    def _failure(self, error: OSError) -> Exception:
        if is_out_of_space(error):
            return StoreFull()
        if error.errno in _NO_DESCRIPTORS:  # the disk has not failed
            return Overloaded("the gateway has too many open files; try later")
        if isinstance(error, PermissionError):
            return Unavailable(
                "the gateway may not write to its state directory; continue the upload once it may"
            )
        self._journal.fail(error)
        return InternalError(f"the upload cannot be written: {error.strerror}")


def _repeated(user: RecordedJob, batch: Sequence[bytes]) -> Receipt:
    """Return the receipt for inputs that were deleted after their job."""
    stored = user.spec.queries
    for message in map(parse, batch):
        if message.first + len(message.inputs) > stored:
            raise UploadUsed(user.spec.upload_id, user.id)
    return Receipt(stored, None)


def _store(opened: OpenLog, batch: Sequence[bytes]) -> Receipt:
    """Append the inputs of messages that are not stored yet, and sync."""
    log = opened.log
    with opened.lock:
        try:
            for data in batch:
                message = parse(data)
                stored = len(log.tags())
                if message.first > stored:
                    raise InvalidInput(
                        f"input {message.first:,} was sent, but only {stored:,} are stored: "
                        f"continue with input {stored:,}"
                    )
                digest = log.tags()[message.first - 1] if message.first else 0
                known = message.inputs[: stored - message.first]
                for index, each in enumerate(known, message.first):
                    digest = chain_digest(digest, (each,))
                    if digest != log.tags()[index]:
                        raise Conflict(
                            f"input {index:,} of upload {opened.key.name!r} is stored already, and "
                            "differs: upload other inputs under another id"
                        )
                new = message.inputs[len(known) :]
                if new and (opened.user or opened.takers):
                    raise UploadUsed(opened.key.name, opened.user)
                if stored + len(new) > MAX_QUERIES:
                    raise InvalidInput(f"an upload has at most {MAX_QUERIES:,} inputs")
                if new:
                    _check_disk(log.directory, message.size)
                    log.append(_records(digest, new))
        finally:
            log.sync()
        return Receipt(len(log), log.tags()[-1] if len(log) else 0)


def _records(digest: int, inputs: Sequence[memoryview]) -> Iterator[Record]:
    """Yield the records of further inputs; the tag of each is the digest up to it."""
    for each in inputs:
        digest = chain_digest(digest, (each,))
        yield Record(digest, (each,))


def _wait_written(opened: OpenLog) -> None:
    """Wait for inputs that were let in before the upload was taken."""
    with opened.lock:
        pass


def _check_disk(directory: Path, size: int) -> None:
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if free < size + FREE_BYTES:
        raise Overloaded(
            f"the disk of the gateway's state directory has {free:,} bytes free, and uploads leave "
            f"{FREE_BYTES:,} of them to its journal; free space there, then retry"
        )


class _ReadAhead:
    """Reads messages of a client ahead while earlier ones are written."""

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages = messages
        self._reading = TaskBag()
        self._read: list[bytes] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    async def batches(self, first: bytes) -> AsyncGenerator[list[bytes], None]:
        """Yield `first`, and then in each batch all messages that were read since the last one."""
        reader = self._reading.start_awaited(self._read_all())
        reader.add_done_callback(lambda _: self._arrived.set())
        try:
            self._read.append(first)
            self._arrived.set()
            del first
            while True:
                try:
                    async with asyncio.timeout(IDLE_S):
                        await self._arrived.wait()
                except TimeoutError:
                    raise Unavailable(
                        f"no message has arrived for {IDLE_S:g} s; continue the upload with "
                        "the next one"
                    ) from None
                self._arrived.clear()
                batch, self._read, self._bytes = self._read, [], 0
                self._room.set()
                if batch:
                    yield batch
                del batch  # the next one may be a long time coming
                if reader.done():
                    if self._read:
                        yield self._read
                    reader.result()
                    return
        finally:
            await self._reading.close()

    async def _read_all(self) -> None:
        async for message in self._messages:
            while self._read and self._bytes + len(message) > AHEAD_BYTES:
                self._room.clear()
                await self._room.wait()
            self._read.append(message)
            self._bytes += len(message)
            self._arrived.set()
            del message
