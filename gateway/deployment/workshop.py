"""Where the gateway cuts engines: a model directory of its own, whose content may be lost."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.deployment.planning_process import PlanningProcesses
from gateway.hub.store.store import GATEWAY
from gateway.hub.store.transfers import KEEP_FREE_BYTES, PushKey
from synergai.errors import Overloaded
from synergai.models.directories import ModelDirectories
from synergai.models.manifest import pack
from synergai.names import is_stage, split_version, stage_name
from synergai.runtime.tasks import run_to_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from synergai.core.routes.deployment import Stage
    from synergai.core.routes.problem import Route
    from synergai.domain import EngineName

_PIECE: Final = 4 << 20
"""Bytes that are copied at a time."""
_DIGEST: Final = ".digest"
"""File in the folder of a version that is complete, with its digest."""


class Workshop:
    """Engines of the store with their stages, on the gateway's disk.

    Attributes:
        models: the model directory.
        turn: held while an engine is cut; only one is at a time.
        processes: those that plan and cut.
    """

    def __init__(self, store: EngineStore, models: Path) -> None:
        self._store = store
        self.models = models
        self.turn = asyncio.Lock()
        self.processes = PlanningProcesses()
        # Held while engines come and go.
        self._moving = asyncio.Lock()

    async def bring(self, stored: StoredVersion) -> None:
        """Copy a version from the store, unless it is here."""
        async with self._moving:
            await self._bring(stored)

    async def _bring(self, stored: StoredVersion) -> None:
        folder = self._folder(stored.name)
        mark = folder / _DIGEST
        if await asyncio.to_thread(lambda: mark.is_file() and mark.read_text() == stored.digest):
            return
        try:
            await run_to_end(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
            await asyncio.to_thread(self._check_room, stored)
            for file in stored.manifest.files:
                await self._copy(file.sha256, file.size, folder / file.path)
            await run_to_end(asyncio.to_thread(mark.write_text, stored.digest))
        except OSError as error:
            raise Overloaded(
                f"engine {stored.name!r} cannot be copied to {folder}: {error.strerror}"
            ) from None

    def _check_room(self, stored: StoredVersion) -> None:
        """Check that a version and its stages leave room on the disk, which the journal needs."""
        self.models.mkdir(parents=True, exist_ok=True, mode=0o700)
        free, needed = shutil.disk_usage(self.models).free, 2 * stored.manifest.size
        if free - needed < KEEP_FREE_BYTES:
            raise Overloaded(
                f"the gateway's disk has {free:,} bytes free, of which {KEEP_FREE_BYTES:,} stay: "
                f"it has no room for {needed:,} to cut engine {stored.name!r}"
            )

    async def _copy(self, sha256: str, size: int, path: Path) -> None:
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
        with closing(await asyncio.to_thread(path.open, "wb")) as file:
            for offset in range(0, size, _PIECE):
                piece = await self._store.read(sha256, offset, _PIECE)
                await run_to_end(asyncio.to_thread(file.write, piece))

    @asynccontextmanager
    async def cut(self, engine: EngineName, cuts: tuple[int, ...]) -> AsyncIterator[None]:
        """Make the stages of an engine that is here between cuts, and remove them at the end."""
        try:
            await self.processes.split(self.models, engine, cuts)
            yield
        finally:
            await run_to_end(asyncio.to_thread(_remove_stages, self.models))

    async def publish(self, stage: EngineName, version: int, placement: Sequence[str]) -> None:
        """Store a stage that was made, with a placement."""
        name, _ = split_version(stage)
        folder = self.models / name
        if (own := folder / str(version)).is_dir():
            folder = own
        package = await asyncio.to_thread(pack, folder, name, version)
        data = package.manifest.encode()
        digest, _, missing = await self._store.open(GATEWAY, name, version, data, placement)
        key = PushKey(GATEWAY.name, name, version, digest)
        try:
            for content in missing:
                path, offset = package.paths[content.sha256], content.received
                with closing(await asyncio.to_thread(path.open, "rb")) as file:
                    file.seek(offset)
                    while piece := await asyncio.to_thread(file.read, _PIECE):
                        offset = await self._store.append(key, content.sha256, offset, piece)
        except BaseException:
            self._store.give_up(key)
            raise
        await self._store.publish(GATEWAY, name, version, digest, placement)

    async def tidy(self, kept: Collection[EngineName]) -> None:
        """Remove all engines but some, and all stages: they are in the store.

        While an engine is being cut, everything stays.
        """
        folders = {self._folder(engine) for engine in kept}
        async with self._moving:
            if not self.turn.locked():
                removal = partial(_remove_others, self.models, folders)
                await run_to_end(asyncio.to_thread(removal))

    def _folder(self, engine: EngineName) -> Path:
        return ModelDirectories(self.models, self.models).folder(engine)


async def make_stages(
    workshop: Workshop,
    stored: StoredVersion,
    routes: Iterable[Route],
    placements: Mapping[Stage, Sequence[str]],
) -> None:
    """Cut an engine for its routes, and put those stages into the store that have placements."""
    missing = set(placements)
    for chain in sorted({tuple(leg[1:] for leg in route.legs) for route in routes}):
        if missing.isdisjoint(chain):
            continue
        async with workshop.turn:
            await workshop.bring(stored)
            async with workshop.cut(stored.name, tuple(last for _, last in chain[:-1])):
                for stage in missing.intersection(chain):
                    name = stage_name(stored.name, *stage)
                    await workshop.publish(name, stored.version, placements[stage])
        missing.difference_update(chain)


def _remove_stages(models: Path) -> None:
    """Remove stages, and what a process that was killed has begun to write."""
    for folder in models.iterdir():
        if is_stage(folder.name) or folder.name.startswith("."):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_others(models: Path, folders: Collection[Path]) -> None:
    if not models.is_dir():
        return
    kept = {folder.parent for folder in folders}
    for each in models.iterdir():
        if each not in kept:
            shutil.rmtree(each, ignore_errors=True)
    for each in kept:
        for version in each.iterdir() if each.is_dir() else ():
            if version not in folders:
                shutil.rmtree(version, ignore_errors=True)
