"""The store of engines: versions, the content of their files, and how both come and go.

Content is named by its SHA-256 and shared by versions. A client that may operate no version with a
content has to upload it: its name alone does not prove that the client has it. A version becomes
visible by one atomic write of its record, after all of its content is there, and never changes
except for its placement. The records are kept in memory, so that only transfers and changes need
the storage.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

from msgspec.structs import replace

from gateway.entry.access.caller import Caller, Grant, Role
from gateway.hub.store.files import Files, Threads
from gateway.hub.store.storage import FROM_WORKER, Storage, StoredVersion, parse_placement
from gateway.hub.store.transfers import KEEP_FREE_BYTES, OWN, Missing, Push, Pushes, PushKey
from synergai.errors import (
    Conflict,
    EngineUnusable,
    InvalidInput,
    NotFound,
    SynergaiError,
    Unavailable,
)
from synergai.models.manifest import content_digest, read_manifest
from synergai.names import split_version, validate_name, validate_stored_version, versioned
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
    from pathlib import Path

    from synergai.domain import EngineName

P = ParamSpec("P")
T = TypeVar("T")

GATEWAY: Final = Caller(OWN, "", (Grant(to=(), roles=frozenset({Role.OPERATE})),))
"""Who pushes what the gateway makes itself."""
_THREADS: Final = 2
_CHECK_S: Final = 30.0
"""Interval at which a store that cannot be reached is tried again, and old uploads are removed."""

_log = logging.getLogger(__name__)


def _completed(
    change: Callable[Concatenate[EngineStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[EngineStore, P], Coroutine[Any, Any, T]]:
    """Return the method that completes a change even if its caller is cancelled."""

    @wraps(change)
    async def complete(self: EngineStore, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._running.complete(change(self, *args, **options))

    return complete


async def _alone() -> None:
    """Confirm that no other gateway has the store."""


class EngineStore:
    """The store of a gateway.

    `fault` says why the storage cannot be used; empty if it can. `confirm` is called before
    changes: it fails once another gateway has taken over.
    """

    def __init__(
        self,
        files: Files,
        uploads: Path,
        *,
        location: str,
        remembered: Path,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        confirm: Callable[[], Awaitable[None]] = _alone,
    ) -> None:
        self._confirm = confirm
        self._storage = Storage(files, location, remembered)
        self.versions: dict[tuple[str, int], StoredVersion] = {}
        self._by_engine: dict[str, set[int]] = {}
        self._content: dict[str, int] = {}
        self._threads = Threads(_THREADS, "store", location)
        self._pushes = Pushes(uploads, self._threads, keep_free_bytes=keep_free_bytes)
        self._changes = asyncio.Lock()
        self._running = TaskBag()
        self._followers: list[Callable[[], object]] = []
        self.fault = ""
        self.loaded = False

    @property
    def used_bytes(self) -> int:
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
                await self._pushes.expire()
            except SynergaiError as error:
                _log.warning("trying again in %g s: %s", _CHECK_S, error)
            except Exception:  # noqa: BLE001 - a bug in one look must not end all others
                _log.exception("cannot look after the store of engines")
            await asyncio.sleep(_CHECK_S)

    def of(self, engine: EngineName) -> StoredVersion | None:
        """Return the version that an engine of a worker is called like; None if there is none."""
        name, version = split_version(engine)
        return self.versions.get((name, int(version)))

    def model_of(self, engine: EngineName) -> str:
        """Return the digest of the model of a version; empty if the store does not have it."""
        stored = self.of(engine)
        return "" if stored is None else stored.model_sha256

    def files_of(self, engine: EngineName) -> Collection[str]:
        """Return the digests of the files of a version; empty if nobody has pushed it."""
        stored = self.of(engine)
        if stored is None or stored.source:
            return ()
        return {stored.model_sha256, *stored.manifest.contents}

    def engines(self) -> list[EngineName]:
        return [versioned(engine, str(version)) for engine, version in self.versions]

    def versions_of(self, engine: str) -> Collection[int]:
        """Return the versions of an engine that were pushed."""
        return self._by_engine.get(engine, ())

    async def close(self) -> None:
        """Wait for changes in progress."""
        await self._running.wait()
        await self._threads.close()

    async def load(self) -> None:
        """Read the versions, and remove content that none of them has."""
        async with self._changes:
            versions, content = await self._call(self._storage.load)
            self.versions, self._content = versions, content
            await self._collect()
            self.loaded = True
        _log.info(
            "the store of engines has %d versions, %.0f MB", len(versions), self.used_bytes / 1e6
        )
        self._changed()

    # --- pushing ----------------------------------------------------------------------------

    async def open(
        self,
        caller: Caller,
        engine: str,
        version: int,
        data: bytes,
        placement: Sequence[str] = (),
    ) -> tuple[str, bool, list[Missing]]:
        """Begin or continue to push a version with a placement, as far as the client tells it.

        Return the digest of the manifest, whether the version is published already, and the content
        that is to be uploaded.
        """
        self._check_loaded()
        validate_name(engine, "engine name")
        validate_stored_version(version)
        parse_placement(placement)
        # Manifests may be large.
        push, digest = await self._threads.run(
            lambda: (Push(data, read_manifest(data)), content_digest(data))
        )
        stored = self._pushed(engine, version)
        if stored is not None and stored.digest != digest:
            raise Conflict(
                f"version {version} of {engine!r} is stored with the digest "
                f"{stored.digest[:12]}…, and versions do not change: push {digest[:12]}… as "
                "another version, or remove it first with 'synergai engines remove'"
            )
        readable = self._readable(caller)
        _check_sizes(push.contents, readable)
        if stored is not None and push.contents.keys() <= readable.keys():
            return digest, True, []
        key = PushKey(caller.name, engine, version, digest)
        return digest, False, await self._pushes.begin_push(key, push, readable)

    async def append(self, key: PushKey, sha256: str, offset: int, data: bytes) -> int:
        """Append to content that is being uploaded; see `Pushes.append`."""
        return await self._pushes.append(key, sha256, offset, data)

    def give_up(self, key: PushKey) -> None:
        """End a push that nobody will continue."""
        self._pushes.end(key)

    @_completed
    async def publish(
        self, caller: Caller, engine: str, version: int, digest: str, placement: Sequence[str]
    ) -> StoredVersion:
        """Make an uploaded version visible; without selectors, to all workers or as before."""
        selectors = parse_placement(placement)
        async with self._changes:
            self._check_loaded()
            await self._confirm()
            stored = self._pushed(engine, version)
            if stored is not None and stored.digest != digest:
                raise Conflict(
                    f"version {version} of {engine!r} was stored concurrently with another digest"
                )
            pushed = PushKey(caller.name, engine, version, digest)
            if stored is not None and not _may_change(caller, stored):
                self._pushes.end(pushed)
                return stored
            push = self._pushes.get(pushed)
            if push is None:
                if stored is not None and not stored.fault:
                    return await self._replace(caller, stored, selectors or stored.placement)
                raise NotFound(
                    f"no version with the digest {digest[:12]}… is being uploaded: push it again"
                )
            readable = self._readable(caller)
            _check_sizes(push.contents, readable)
            paths = await self._pushes.complete(push, readable)
            absent = [each for each, path in paths if path is None]
            if absent:
                raise EngineUnusable(
                    f"{len(absent)} files of version {version} of {engine!r} were not uploaded"
                )
            await self._call(self._storage.remember)
            for each, path in paths:
                if path is not None and each not in self._content:
                    await self._call(partial(self._storage.adopt, each, path))
                    self._content[each] = push.contents[each]
            await self._call(partial(self._storage.write, digest, push.data))
            self._content[digest] = len(push.data)
            stored = StoredVersion(
                engine=engine,
                version=version,
                digest=digest,
                manifest=push.manifest,
                placement=selectors or (stored.placement if stored is not None else ()),
                pushed_at=datetime.now(UTC).isoformat(timespec="seconds"),
                pushed_by=caller.name,
            )
            await self._call(partial(self._storage.write_record, stored))
            self.versions[engine, version] = stored
            await self._pushes.remove(pushed)
            await self._collect()
        _log.info("engine %s version %d is stored, digest %s", engine, version, digest[:12])
        self._changed()
        return stored

    @_completed
    async def set_placement(
        self, caller: Caller, engine: str, version: int, placement: Sequence[str]
    ) -> StoredVersion:
        """Change which workers fetch a version.

        One that the gateway has made is the caller's from then on.
        """
        selectors = parse_placement(placement)
        async with self._changes:
            await self._confirm()
            return await self._replace(caller, self.get(engine, version), selectors)

    @_completed
    async def remove(self, engine: str, version: int) -> int:
        """Remove a version and the content that no other one has; return its size in bytes."""
        async with self._changes:
            await self._confirm()
            self.get(engine, version)
            await self._call(partial(self._storage.remove_record, engine, version))
            del self.versions[engine, version]
            before = self.used_bytes
            await self._collect()
            freed = before - self.used_bytes
        _log.info("version %d of engine %s is removed from the store", version, engine)
        self._changed()
        return freed

    # --- reading ----------------------------------------------------------------------------

    def get(self, engine: str, version: int) -> StoredVersion:
        self._check_loaded()
        stored = self.versions.get((engine, version))
        if stored is None:
            raise NotFound(f"the store has no version {version} of {engine!r}")
        return stored

    async def read(self, sha256: str, offset: int, size: int) -> bytes:
        if sha256 not in self._content:
            raise NotFound(f"the store has no content {sha256[:12]}…")
        return await self._call(partial(self._storage.read, sha256, offset, size))

    def content_size(self, sha256: str) -> int:
        if sha256 not in self._content:
            raise NotFound(f"the store has no content {sha256[:12]}…")
        return self._content[sha256]

    # --- internals --------------------------------------------------------------------------

    def _check_loaded(self) -> None:
        if not self.loaded:
            raise Unavailable(f"the store of engines is not available: {self.fault or 'loading'}")

    def _pushed(self, engine: str, version: int) -> StoredVersion | None:
        """Return a version unless it is a copy from a worker, which gives way to what is pushed."""
        stored = self.versions.get((engine, version))
        return None if stored is None or stored.source else stored

    def _readable(self, caller: Caller) -> dict[str, int]:
        """Return the sizes of the content that a caller could place on a worker, by SHA-256."""
        return {
            sha256: self._content[sha256]
            for stored in self.versions.values()
            if caller.may(Role.OPERATE, engine=stored.engine)
            for sha256 in stored.manifest.contents
            if sha256 in self._content
        }

    async def _replace(
        self, caller: Caller, stored: StoredVersion, placement: tuple[str, ...]
    ) -> StoredVersion:
        """Give a version another placement; the lock is held."""
        if not _may_change(caller, stored):
            return stored
        is_own = stored.pushed_by == GATEWAY.name or stored.source
        owner = caller.name if is_own and caller.name != GATEWAY.name else stored.pushed_by
        if (placement, owner) == (stored.placement, stored.pushed_by):
            return stored
        stored = replace(stored, placement=placement, pushed_by=owner)
        await self._call(partial(self._storage.write_record, stored))
        self.versions[stored.engine, stored.version] = stored
        self._changed()
        return stored

    async def _collect(self) -> None:
        """Remove content that no version has; what cannot be removed is tried again later."""
        used = {stored.digest for stored in self.versions.values()}
        for stored in self.versions.values():
            used |= stored.manifest.contents.keys()
        for sha256 in self._content.keys() - used:
            try:
                await self._call(partial(self._storage.remove, sha256))
            except SynergaiError as error:
                _log.warning("cannot remove content %s: %s", sha256[:12], error)
                return
            del self._content[sha256]

    def _changed(self) -> None:
        self._by_engine = defaultdict(set)
        for (engine, version), stored in self.versions.items():
            if not stored.source:
                self._by_engine[engine].add(version)
        for on_change in self._followers:
            on_change()

    async def _call(self, operation: Callable[[], T]) -> T:
        """Run a blocking operation of the storage in a thread, and keep its fault."""
        try:
            result = await self._threads.run(operation)
        except Unavailable as error:
            self.fault = str(error)
            raise
        self.fault = ""
        return result


def _may_change(caller: Caller, stored: StoredVersion) -> bool:
    """Return whether a version is not a client's, which the gateway itself leaves alone."""
    by_client, of_client = (
        name != GATEWAY.name and not name.startswith(FROM_WORKER)
        for name in (caller.name, stored.pushed_by)
    )
    return by_client or not of_client


def _check_sizes(contents: Mapping[str, int], readable: Mapping[str, int]) -> None:
    """Check that a manifest has the sizes of the content that it need not upload.

    Otherwise the store would take content for damaged when it is loaded, also that of other
    versions.
    """
    for sha256, size in contents.items():
        if readable.get(sha256, size) != size:
            raise InvalidInput(
                f"the manifest is wrong: the content {sha256[:12]}… does not have {size:,} bytes"
            )
