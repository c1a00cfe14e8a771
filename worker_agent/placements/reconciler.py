"""Makes the fetched engines what the gateway wants here, and reports what became of each."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from msgspec import Struct

from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.models.formats.model_files import digest as model_digest
from synergai.models.manifest import MAX_MANIFEST_BYTES, Manifest, read_manifest, validate_sha256
from synergai.names import validate_name, validate_stored_version, versioned
from synergai.runtime.clock import Backoff
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from pathlib import Path

    from synergai.domain import EngineName
    from synergai.v1 import hub_pb2
    from worker_agent.placements.fetched import FetchedEngines

    Fetch: TypeAlias = Callable[[str, int], AsyncGenerator[bytes, None]]
    """Yields a content, by SHA-256, from an offset to its end."""

RETRY: Final = Backoff(initial_s=1.0, max_s=300.0)
_REPORT_S: Final = 1.0
"""Interval of reports while a version is fetched."""

_log = logging.getLogger(__name__)


class _Wanted(Struct, frozen=True):
    """A version that should be here."""

    name: str
    version: int
    digest: str
    size: int

    @property
    def engine(self) -> EngineName:
        """Its name on this worker."""
        return versioned(self.name, str(self.version))


class Reconciler:
    """Fetches and installs the versions placed on this worker, and removes others.

    Versions are fetched one after the other. One that fails does not affect the others, and is
    tried again after a pause.
    """

    def __init__(
        self,
        fetched: FetchedEngines,
        find_own: Callable[[], Mapping[EngineName, Path]],
        report: Callable[[common_pb2.Placed], object],
        on_installed: Callable[[EngineName], object],
        backoff: Backoff = RETRY,
    ) -> None:
        self._fetched = fetched
        self._find_own = find_own
        self._report = report
        self._on_installed = on_installed
        self._backoff = backoff
        self._wanted: list[_Wanted] = []
        self._fetch: Fetch
        self._changed = asyncio.Event()

    def set_placements(self, placements: Iterable[hub_pb2.Placement], fetch: Fetch) -> None:
        """Set what should be here, and how to fetch it from now on."""
        self._wanted = [
            _Wanted(
                validate_name(each.engine, "engine name"),
                validate_stored_version(each.version),
                validate_sha256(each.digest),
                each.size,
            )
            for each in placements
        ]
        self._fetch = fetch
        self._changed.set()

    def look_again(self) -> None:
        """Reconcile again, since the user's model directory has changed."""
        if self._wanted:
            self._changed.set()

    async def run(self) -> NoReturn:
        """Reconcile after every change, and again after failures, until cancelled."""
        delays = self._backoff.delays()
        await self._changed.wait()
        while True:
            if self._changed.is_set():
                self._changed.clear()
                delays = self._backoff.delays()
            try:
                complete = await self._reconcile()
            except Exception:  # noqa: BLE001 - a bug in one attempt must not end the agent
                _log.exception("cannot bring the fetched engines up to date")
                complete = False
            if complete:
                await self._changed.wait()
                continue
            try:
                async with asyncio.timeout(next(delays)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _reconcile(self) -> bool:
        """Fetch and remove engines as wanted; return whether nothing is left to do."""
        complete = True
        try:
            own = await asyncio.to_thread(self._find_own)
        except (SynergaiError, OSError) as error:
            for wanted in self._wanted:
                self._fail(wanted, error)
            return False
        installed: dict[EngineName, str] = {}
        try:
            await asyncio.to_thread(self._remove_unwanted, list(self._wanted), own)
            installed = await asyncio.to_thread(self._fetched.installed)
        except OSError as error:
            _log.warning("cannot remove fetched engines: %s", error)
            complete = False
        placed: set[str] = {each.digest for each in self._wanted}
        manifests: dict[str, Manifest] = {}
        for wanted in self._wanted:
            try:
                manifest = await asyncio.to_thread(self._read_known, wanted.digest)
            except (InvalidInput, OSError):
                continue  # reported with its version
            if manifest is not None:
                manifests[wanted.digest] = manifest
                placed.update(manifest.contents)
        # The smallest first: stages can run soon, the engine that they are made of maybe never.
        for wanted in sorted(self._wanted, key=lambda each: each.size):
            if self._changed.is_set():
                return True  # and begin again with the versions wanted now
            model = own.get(wanted.engine)
            if model is None and installed.get(wanted.engine) == wanted.digest:
                self._tell_installed(wanted)
                continue
            done = await self._reconcile_one(wanted, model, manifests, placed)
            complete = complete and done
        if complete:
            try:
                await asyncio.to_thread(self._fetched.evict, placed)
            except OSError as error:
                _log.warning("cannot evict content that is not placed: %s", error)
        return complete

    async def _reconcile_one(
        self,
        wanted: _Wanted,
        own: Path | None,
        manifests: dict[str, Manifest],
        placed: set[str],
    ) -> bool:
        """Fetch and install one version, and report it; return whether nothing is left to do."""
        try:
            manifest = manifests.get(wanted.digest) or await self._fetch_manifest(wanted)
            placed.update(manifest.contents)
            if own is not None:
                return await self._compare(wanted, manifest, own)
            await self._receive(wanted, manifest, placed)
            await asyncio.to_thread(self._fetched.install, wanted.engine, wanted.digest, manifest)
        except (SynergaiError, OSError) as error:
            if self._changed.is_set():
                return True
            self._fail(wanted, error, await asyncio.to_thread(self._received, manifests, wanted))
            return False
        _log.info("fetched version %d of engine %s", wanted.version, wanted.name)
        self._tell_installed(wanted)
        self._on_installed(wanted.engine)
        return True

    async def _compare(self, wanted: _Wanted, manifest: Manifest, own: Path) -> bool:
        """Report a version that is in the user's model directory, which is not touched."""
        if await asyncio.to_thread(model_digest, own) == manifest.model_sha256:
            self._tell(wanted, common_pb2.PLACED_STATE_INSTALLED, wanted.size)
        else:
            fault = (
                "the model directory has this version with another file: remove it there to use "
                "the one of the store"
            )
            _log.warning("version %d of %s: %s", wanted.version, wanted.name, fault)
            self._tell(wanted, common_pb2.PLACED_STATE_CONFLICT, 0, fault)
        return True

    async def _fetch_manifest(self, wanted: _Wanted) -> Manifest:
        await self._fetch_content(wanted.digest, MAX_MANIFEST_BYTES, lambda _: None, exact=False)
        manifest = await asyncio.to_thread(self._read_known, wanted.digest)
        if manifest is None:
            raise InvalidInput("its manifest cannot be read")
        return manifest

    async def _receive(self, wanted: _Wanted, manifest: Manifest, placed: set[str]) -> None:
        contents = self._fetched.contents

        def missing() -> dict[str, int]:
            return {
                sha256: size
                for sha256, size in manifest.contents.items()
                if contents.complete(sha256) is None
            }

        lacking = await asyncio.to_thread(missing)
        await asyncio.to_thread(self._fetched.make_room, lacking, placed)
        done = manifest.size - sum(lacking.values())
        self._tell(wanted, common_pb2.PLACED_STATE_FETCHING, done)
        reported_at = time.monotonic()

        def progress(received: int) -> None:
            nonlocal reported_at
            if time.monotonic() - reported_at >= _REPORT_S:
                reported_at = time.monotonic()
                self._tell(wanted, common_pb2.PLACED_STATE_FETCHING, done + received)

        for sha256, size in lacking.items():
            await self._fetch_content(sha256, size, progress)
            done += size

    async def _fetch_content(
        self, sha256: str, size: int, progress: Callable[[int], object], *, exact: bool = True
    ) -> None:
        """Fetch one content from the byte where it stopped."""
        contents = self._fetched.contents
        received = await asyncio.to_thread(contents.received, sha256)
        chunks = self._fetch(sha256, received)
        try:
            async for data in chunks:
                received = await asyncio.to_thread(contents.append, sha256, received, data, size)
                progress(received)
                if self._changed.is_set():
                    raise Unavailable("the placements have changed")
        finally:
            await chunks.aclose()
        if exact and received < size:
            raise Unavailable(f"the gateway sent {received:,} of {size:,} bytes")
        if not await asyncio.to_thread(contents.verify, sha256, received):
            await asyncio.to_thread(contents.remove, sha256)
            raise Unavailable(
                f"content {sha256[:12]}… was damaged on its way, and is fetched again"
            )

    def _read_known(self, digest: str) -> Manifest | None:
        path = self._fetched.contents.complete(digest)
        return None if path is None else read_manifest(path.read_bytes())

    def _received(self, manifests: dict[str, Manifest], wanted: _Wanted) -> int:
        manifest = manifests.get(wanted.digest)
        if manifest is None:
            return 0
        return sum(map(self._fetched.contents.received, manifest.contents))

    def _remove_unwanted(self, wanted: list[_Wanted], own: Mapping[EngineName, Path]) -> None:
        """Remove installed versions that are not wanted; their content becomes the most recent."""
        digests = {each.engine: each.digest for each in wanted}
        for engine, digest in self._fetched.installed().items():
            if engine not in digests or (not digest and engine not in own):
                _log.info("removing fetched engine %s, which is no longer placed here", engine)
                self._fetched.remove(engine)
                if (manifest := self._read_known(digest) if digest else None) is not None:
                    for sha256 in (digest, *manifest.contents):
                        self._fetched.contents.touch(sha256)

    def _fail(self, wanted: _Wanted, error: SynergaiError | OSError, received: int = 0) -> None:
        """Report a version that cannot be fetched now."""
        fault = str(error)
        if not isinstance(error, SynergaiError):
            where = error.filename or self._fetched.contents.folder
            fault = f"{where}: {error.strerror or error}"
        _log.warning("cannot fetch version %d of %s: %s", wanted.version, wanted.name, fault)
        self._tell(wanted, common_pb2.PLACED_STATE_FAILED, received, fault)

    def _tell_installed(self, wanted: _Wanted) -> None:
        self._tell(wanted, common_pb2.PLACED_STATE_INSTALLED, wanted.size, fetched=True)

    def _tell(
        self,
        wanted: _Wanted,
        state: common_pb2.PlacedState.ValueType,
        received: int,
        fault: str = "",
        *,
        fetched: bool = False,
    ) -> None:
        self._report(
            common_pb2.Placed(
                engine=wanted.name,
                version=wanted.version,
                digest=wanted.digest,
                state=state,
                received=received,
                size=wanted.size,
                fault=fault,
                fetched=fetched,
            )
        )
