"""Engines of the user's model directory that the gateway asks for, to cut them into stages."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import InvalidInput, SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.models.manifest import pack
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from synergai.domain import EngineName
    from synergai.models.manifest import Package
    from synergai.v1 import store_pb2

    ReadContents: TypeAlias = Callable[
        [Iterable[store_pb2.MissingContent]], AsyncGenerator[bytes, None]
    ]
    """Yields what is missing of some contents, in their order."""
    Send: TypeAlias = Callable[[hub_pb2.EngineChunk, ReadContents], Awaitable[None]]
    """Sends an engine by its first message and its contents."""

_CHUNK_BYTES: Final = 256 << 10
"""Bytes of a message, which the gateway writes without delaying requests."""

_log = logging.getLogger(__name__)


async def send_engine(models: Path, engine: EngineName, send: Send) -> None:
    """Send an engine of a model directory, or why that is not possible."""
    head = hub_pb2.EngineChunk(engine=engine)
    paths: Mapping[str, Path] = {}
    try:
        try:
            package = await asyncio.to_thread(_pack, models, engine)
            head.manifest, paths = package.manifest.encode(), package.paths
        except SynergaiError as error:
            head.fault = str(error)
        await send(head, partial(_read, paths))
    except (SynergaiError, OSError) as error:
        _log.warning("engine %s was not sent to the gateway: %s", engine, error)
    else:
        _log.info("engine %s was sent to the gateway, which cuts it", engine)


def _pack(models: Path, engine: EngineName) -> Package:
    definition = ModelDirectory(models).get(engine)
    if definition.folder is None:
        raise InvalidInput(definition.fault)
    return pack(definition.folder, definition.name.partition("/")[0], int(definition.version))


async def _read(
    paths: Mapping[str, Path], missing: Iterable[store_pb2.MissingContent]
) -> AsyncGenerator[bytes, None]:
    for each in missing:
        with await asyncio.to_thread(paths[each.sha256].open, "rb", buffering=0) as file:
            file.seek(each.received)
            while data := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield data
