"""The store of engines: versions, the content of their files, and how both come and go.

Content is named by its SHA-256 and shared by versions. A version becomes visible by one atomic
write of its record, after all of its content is there, and never changes except for its placement.
The records are kept in memory, so that only transfers and changes need the storage.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gateway.store.selectors import parse_placement
from gateway.store.storage import Storage, StoredVersion
from gateway.store.threads import Threads
from synergai.domain import split_version, validate_name
from synergai.errors import (
    Conflict,
    EngineUnusable,
    InvalidInput,
    NotFound,
    Overloaded,
    SynergaiError,
    Unavailable,
)
from synergai.models.manifest import (
    Manifest,
    content_digest,
    read_manifest,
    validate_sha256,
    validate_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from gateway.store.files import Files
    from synergai.domain import EngineName
    from synergai.models.contents import Contents

T = TypeVar("T")

KEEP_FREE_BYTES: Final = 512 << 20
"""Space that uploads leave on the disk of the state directory, which has the journal as well."""
_MAX_PENDING: Final = 64
"""Versions that clients are uploading."""
_THREADS: Final = 2
_CHECK_S: Final = 30.0
"""Interval at which a store that cannot be reached is tried again, and old uploads are removed."""

_log = logging.getLogger(__name__)


class Missing(Struct, frozen=True):
    """Content that the store lacks: its SHA-256, size, and the bytes received so far."""

    sha256: str
    size: int
    received: int


class _Pending(Struct, frozen=True):
    """A version that a client is uploading."""

    data: bytes
    manifest: Manifest
    contents: dict[str, int]


class EngineStore:
    """The store of a gateway.

    Args:
        files: where it keeps its files.
        uploads: content that clients are uploading.
        location: what identifies the storage, to notice that it was lost.
        remembered: file in the state directory with the id of the storage.
        budget_bytes: limit of its content; 0 for none.
        keep_free_bytes: space that uploads leave on their disk.
        now: current time.

    Attributes:
        fault: why the storage cannot be used; empty if it can.
        loaded: whether the versions are known.
    """

    def __init__(
        self,
        files: Files,
        uploads: Contents,
        *,
        location: str,
        remembered: Path,
        budget_bytes: int = 0,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._storage = Storage(files, location, remembered)
        self._uploads = uploads
        self._keep_free_bytes = keep_free_bytes
        self._now = now
        self._versions: dict[tuple[str, int], StoredVersion] = {}
        self._content: dict[str, int] = {}
        # By engine, version and digest: engines may have the same files.
        self._pending: dict[tuple[str, int, str], _Pending] = {}
        self._threads = Threads(_THREADS, "store", location)
        self._changes = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._followers: list[Callable[[], object]] = []
        self.budget_bytes = budget_bytes
        self.fault = ""
        self.loaded = False

    @property
    def versions(self) -> Mapping[tuple[str, int], StoredVersion]:
        """All versions by engine and version."""
        return self._versions

    @property
    def used_bytes(self) -> int:
        """Size of the content, in bytes."""
        return sum(self._content.values())

    def follow(self, on_change: Callable[[], object]) -> None:
        """Call back after every change of the versions or of their placement."""
        self._followers.append(on_change)

    async def run(self) -> NoReturn:
        """Load the versions and look after the uploads, until cancelled.

        A storage that cannot be reached is tried again; the gateway serves without it.
        """
        while True:
            try:
                if not self.loaded:
                    await self.load()
                elif self.fault:
                    await self._call(self._storage.check)
                await self._threads.run(self._uploads.expire)
            except SynergaiError as error:
                _log.warning("trying again in %g s: %s", _CHECK_S, error)
            except Exception:  # noqa: BLE001 - a bug in one look must not end all others
                _log.exception("cannot look after the store of engines")
            await asyncio.sleep(_CHECK_S)

    def of(self, engine: EngineName) -> StoredVersion | None:
        """Return the version that an engine of a worker is called like; None if there is none."""
        name, version = split_version(engine)
        return self._versions.get((name, int(version)))

    async def close(self) -> None:
        """Wait for changes in progress."""
        while self._running:
            await asyncio.wait(self._running)
        await self._threads.close()

    async def load(self) -> None:
        """Read the versions, and remove content that none of them has.

        Raises:
            SynergaiError: the storage cannot be read, or is not the one that was used before.
        """
        async with self._changes:
            versions, content = await self._call(self._storage.load)
            self._versions, self._content = versions, content
            await self._collect()
            self.loaded = True
        _log.info(
            "the store of engines has %d versions, %d MB", len(versions), self.used_bytes >> 20
        )
        self._changed()

    # --- pushing ----------------------------------------------------------------------------

    async def open(self, engine: str, version: int, data: bytes) -> tuple[str, bool, list[Missing]]:
        """Begin or continue to push a version.

        Args:
            engine: name of the engine.
            version: its version.
            data: its manifest.

        Returns:
            The digest of the manifest, whether the version is published already, and the content
            that is to be uploaded.

        Raises:
            InvalidInput: a name or the manifest is invalid, or lies about a size.
            Conflict: the version is stored with another digest.
            Overloaded: there is no room for it.
            Unavailable: the store cannot be read.
        """
        self._check_loaded()
        validate_name(engine, "engine name")
        validate_version(version)
        manifest = await self._threads.run(partial(read_manifest, data))
        digest = content_digest(data)
        stored = self._versions.get((engine, version))
        if stored is not None and stored.digest != digest:
            raise Conflict(
                f"version {version} of {engine!r} is stored with the digest "
                f"{stored.digest[:12]}…, and versions do not change: push {digest[:12]}… as "
                "another version, or remove it first with 'synergai engines remove'"
            )
        contents = manifest.contents
        self._check_sizes(contents)
        lacking = {each: size for each, size in contents.items() if each not in self._content}
        if stored is not None and not lacking:
            return digest, True, []
        pushed = engine, version, digest
        self._check_budget(pushed, lacking)
        missing = await self._threads.run(partial(self._missing, lacking))
        await self._threads.run(
            partial(self._check_disk, sum(each.size - each.received for each in missing))
        )
        self._pending.pop(pushed, None)
        while len(self._pending) >= _MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._pending[pushed] = _Pending(data, manifest, contents)
        return digest, False, missing

    async def append(self, sha256: str, offset: int, data: bytes) -> int:
        """Append to content that is being uploaded; return the bytes received so far.

        The digest is verified with the last byte.

        Raises:
            NotFound: no version that was opened lacks it.
            InvalidInput: it is larger than it should be, or has another digest.
            Unavailable: another call has appended meanwhile.
            Overloaded: the disk is full.
        """
        size = self._expected(sha256)
        received = await self._threads.run(partial(self._append, sha256, offset, data, size))
        if received == size and not await self._threads.run(
            partial(self._uploads.verify, sha256, size)
        ):
            raise InvalidInput(
                f"the content that was uploaded as {sha256[:12]}… has another digest: the file "
                "changed meanwhile, or was damaged on its way; push it again"
            )
        return received

    async def publish(
        self, engine: str, version: int, digest: str, placement: Sequence[str], by: str
    ) -> StoredVersion:
        """Make an uploaded version visible.

        Raises:
            InvalidInput: a selector is invalid.
            NotFound: it was not opened.
            EngineUnusable: some of its content was not uploaded.
            Conflict: the version is stored with another digest.
            Overloaded: the disk is full.
            Unavailable: the storage cannot be written.
        """
        selectors = parse_placement(placement)
        return await self._change(self._publish(engine, version, digest, selectors, by))

    async def place(self, engine: str, version: int, placement: Sequence[str]) -> StoredVersion:
        """Change which workers fetch a version.

        Raises:
            InvalidInput: a selector is invalid.
            NotFound: there is no such version.
            Unavailable: the storage cannot be written.
        """
        selectors = parse_placement(placement)
        return await self._change(self._place(engine, version, selectors))

    async def remove(self, engine: str, version: int) -> int:
        """Remove a version and the content that no other one has; return its size in bytes.

        Raises:
            NotFound: there is no such version.
            Unavailable: the storage cannot be written.
        """
        return await self._change(self._remove(engine, version))

    # --- reading ----------------------------------------------------------------------------

    def get(self, engine: str, version: int) -> StoredVersion:
        """Return a version.

        Raises:
            NotFound: there is none.
            Unavailable: the versions are not known yet.
        """
        self._check_loaded()
        stored = self._versions.get((engine, version))
        if stored is None:
            raise NotFound(f"the store has no version {version} of {engine!r}")
        return stored

    async def read(self, sha256: str, offset: int, size: int) -> bytes:
        """Return part of a content.

        Raises:
            NotFound: the store does not have it.
            Unavailable: it cannot be read.
        """
        if sha256 not in self._content:
            raise NotFound(f"the store has no content {sha256[:12]}…")
        return await self._call(partial(self._storage.read, sha256, offset, size))

    def content_size(self, sha256: str) -> int:
        """Return the size of a content in bytes.

        Raises:
            NotFound: the store does not have it.
        """
        if sha256 not in self._content:
            raise NotFound(f"the store has no content {sha256[:12]}…")
        return self._content[sha256]

    # --- internals --------------------------------------------------------------------------

    def _check_loaded(self) -> None:
        if not self.loaded:
            raise Unavailable(f"the store of engines is not available: {self.fault or 'loading'}")

    def _expected(self, sha256: str) -> int:
        """Return the size of content that is to be uploaded."""
        validate_sha256(sha256)
        # The last first: a manifest with a wrong size must not hinder those opened after it.
        for pending in reversed(self._pending.values()):
            if sha256 in pending.contents:
                return pending.contents[sha256]
        raise NotFound(f"content {sha256[:12]}… is not being uploaded: open its version first")

    def _check_budget(self, pushed: tuple[str, int, str], lacking: dict[str, int]) -> None:
        if not self.budget_bytes:
            return
        wanted = dict(lacking)
        for other, pending in self._pending.items():
            if other != pushed:
                wanted |= pending.contents
        needed = sum(size for each, size in wanted.items() if each not in self._content)
        if self.used_bytes + needed > self.budget_bytes:
            raise Overloaded(
                f"the store of engines has {self.used_bytes:,} of {self.budget_bytes:,} bytes and "
                f"has no room for {needed:,} more: remove versions with 'synergai engines remove', "
                "or start the gateway with a larger --store-budget"
            )

    def _check_sizes(self, contents: Mapping[str, int]) -> None:
        """Check that a manifest has the sizes of the content that is stored already.

        Otherwise the store would take content for damaged when it is loaded, also that of other
        versions.

        Raises:
            InvalidInput: it does not.
        """
        for sha256, size in contents.items():
            if self._content.get(sha256, size) != size:
                raise InvalidInput(_wrong_size(sha256, size))

    def _append(self, sha256: str, offset: int, data: bytes, size: int) -> int:
        # Versions that are opened at the same time may have more content than fits on the disk.
        self._check_disk(len(data))
        return self._uploads.append(sha256, offset, data, size)

    def _check_disk(self, needed: int) -> None:
        free = self._uploads.free_bytes()
        if needed and free - needed < self._keep_free_bytes:
            raise Overloaded(
                f"the gateway's disk has {free:,} bytes free, of which uploads leave "
                f"{self._keep_free_bytes:,}, and has no room for {needed:,} more: remove versions "
                "with 'synergai engines remove', or free space in its state directory"
            )

    def _missing(self, lacking: dict[str, int]) -> list[Missing]:
        """Return what is to be uploaded of content that the storage lacks."""
        return [
            Missing(sha256, size, self._uploads.received(sha256))
            for sha256, size in lacking.items()
            if not self._uploads.verify(sha256, size)
        ]

    def _complete(self, lacking: Mapping[str, int]) -> list[tuple[str, Path | None]]:
        """Return the files of uploaded content; None for one that is not complete."""
        found = []
        for sha256, size in lacking.items():
            path = self._uploads.complete(sha256)
            if path is not None and path.stat().st_size != size:
                raise InvalidInput(_wrong_size(sha256, size))
            found.append((sha256, path))
        return found

    async def _publish(
        self, engine: str, version: int, digest: str, placement: tuple[str, ...], by: str
    ) -> StoredVersion:
        async with self._changes:
            self._check_loaded()
            key = engine, version
            stored = self._versions.get(key)
            if stored is not None and stored.digest != digest:
                raise Conflict(
                    f"version {version} of {engine!r} was stored meanwhile with another digest"
                )
            pending = self._pending.get((engine, version, digest))
            if pending is None:
                if stored is not None and not stored.fault:
                    return stored
                raise NotFound(f"no version with the digest {digest[:12]}… is being uploaded")
            validate_name(engine, "engine name")
            validate_version(version)
            self._check_sizes(pending.contents)
            lacking = {e: size for e, size in pending.contents.items() if e not in self._content}
            paths = await self._threads.run(partial(self._complete, lacking))
            absent = [each for each, path in paths if path is None]
            if absent:
                raise EngineUnusable(
                    f"{len(absent)} files of version {version} of {engine!r} were not uploaded"
                )
            await self._call(self._storage.remember)
            for each, path in paths:
                if path is not None:
                    await self._call(partial(self._storage.adopt, each, path))
                    self._content[each] = pending.contents[each]
            await self._call(partial(self._storage.write, digest, pending.data))
            self._content[digest] = len(pending.data)
            stored = StoredVersion(
                engine=engine,
                version=version,
                digest=digest,
                manifest=pending.manifest,
                model_sha256=pending.manifest.model_sha256,
                placement=placement if stored is None else stored.placement,
                pushed_at=self._now().isoformat(timespec="seconds"),
                pushed_by=by,
            )
            await self._call(partial(self._storage.write_record, stored))
            self._versions[key] = stored
            self._pending.pop((engine, version, digest), None)
        _log.info("engine %s version %d is stored, digest %s", engine, version, digest[:12])
        self._changed()
        return stored

    async def _place(self, engine: str, version: int, placement: tuple[str, ...]) -> StoredVersion:
        async with self._changes:
            stored = replace(self.get(engine, version), placement=placement)
            await self._call(partial(self._storage.write_record, stored))
            self._versions[engine, version] = stored
        self._changed()
        return stored

    async def _remove(self, engine: str, version: int) -> int:
        async with self._changes:
            self.get(engine, version)
            await self._call(partial(self._storage.remove_record, engine, version))
            del self._versions[engine, version]
            before = self.used_bytes
            await self._collect()
            freed = before - self.used_bytes
        _log.info("version %d of engine %s is removed from the store", version, engine)
        self._changed()
        return freed

    async def _collect(self) -> None:
        """Remove content that no version has; what cannot be removed is tried again later."""
        used = {stored.digest for stored in self._versions.values()}
        for stored in self._versions.values():
            used |= stored.manifest.contents.keys()
        for sha256 in self._content.keys() - used:
            try:
                await self._call(partial(self._storage.remove, sha256))
            except SynergaiError as error:
                _log.warning("cannot remove content %s: %s", sha256[:12], error)
                return
            del self._content[sha256]

    def _changed(self) -> None:
        for on_change in self._followers:
            on_change()

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, even if the caller is cancelled."""
        task = asyncio.ensure_future(change)
        self._running.add(task)
        task.add_done_callback(self._end_change)
        return await asyncio.shield(task)

    def _end_change(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # avoids asyncio's warning if the caller has gone

    async def _call(self, operation: Callable[[], T]) -> T:
        """Run a blocking operation of the storage in a thread, and keep its fault.

        Raises:
            Overloaded: its disk is full.
            Unavailable: it cannot be used.
        """
        try:
            result = await self._threads.run(operation)
        except Unavailable as error:
            self.fault = str(error)
            raise
        self.fault = ""
        return result


def _wrong_size(sha256: str, size: int) -> str:
    return f"the manifest is wrong: the content {sha256[:12]}… does not have {size:,} bytes"
