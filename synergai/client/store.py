"""Pushing of engines into a gateway's store, and what the store has."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from synergai.client.channel import Patience
from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.tasks import TaskBag
from synergai.v1 import store_pb2
from synergai.wire.converters import from_message
from synergai.wire.writes import keep_status, write_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from io import FileIO
    from pathlib import Path

    from synergai.client.channel import GatewayChannel
    from synergai.v1 import common_pb2

CHUNK_BYTES: Final = 256 << 10
"""Bytes of a message, which the gateway writes without delaying requests."""
_PATIENCE_S: Final = 30.0
"""Time without anything sent after which a push fails."""
_OPEN_TIMEOUT_S: Final = 600.0
"""Time for the gateway to verify what it has of an upload that was interrupted."""
_PUBLISH_TIMEOUT_S: Final = 6 * 3600.0
"""Time for the gateway to move the content to a storage that may be remote."""


class PlacedState(enum.Enum):
    """State of a version on a worker, with the values of ``synergai.v1.PlacedState``."""

    UNKNOWN = 0
    FETCHING = 1
    INSTALLED = 2
    FAILED = 3
    CONFLICT = 4

    @classmethod
    def _missing_(cls, value: object) -> PlacedState:  # noqa: ARG003 - a state of a newer gateway
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedEngine:
    """A version of an engine that is placed on a worker.

    Attributes:
        digest: SHA-256 of its manifest.
        received: bytes that the worker has.
        size: bytes of its files.
        fault: why the worker does not have it; empty if nothing is wrong.
    """

    engine: str
    version: int
    digest: str
    state: PlacedState
    received: int
    size: int
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEngine:
    """A version of an engine in the gateway's store.

    Attributes:
        digest: SHA-256 of its manifest.
        size: bytes of its files.
        placement: selectors of the workers that fetch it; none for all with the backend.
        pushed_at: when it was pushed, in ISO 8601.
        workers: what the connected workers have made of it, by worker id.
        fault: why it cannot be fetched; empty if it can.
    """

    engine: str
    version: int
    digest: str
    model_sha256: str
    backend: str
    size: int
    placement: tuple[str, ...]
    pushed_at: str
    pushed_by: str
    workers: Mapping[str, PlacedEngine]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class StoreContent:
    """Versions in a store, and the bytes that their content uses."""

    engines: tuple[StoredEngine, ...]
    used_bytes: int


def placed_from_proto(message: common_pb2.Placed) -> PlacedEngine:
    """Convert a placed version from its message."""
    return from_message(PlacedEngine, message, state=PlacedState(message.state))


def stored_from_proto(message: store_pb2.StoredEngine) -> StoredEngine:
    """Convert a stored version from its message."""
    return from_message(
        StoredEngine,
        message,
        placement=tuple(message.placement),
        workers={each.worker_id: placed_from_proto(each.placed) for each in message.workers},
    )


class EnginePush:
    """A version of an engine on its way to a gateway's store."""

    def __init__(
        self,
        channel: GatewayChannel,
        engine: str,
        version: int,
        manifest: bytes,
        paths: Mapping[str, Path],
        on_progress: Callable[[int, int], object],
    ) -> None:
        self._channel = channel
        self._engine = engine
        self._version = version
        self._manifest = manifest
        self._paths = paths
        self._on_progress = on_progress
        self._total = sum(path.stat().st_size for path in paths.values())
        self._done = 0

    async def run(self, placement: Sequence[str]) -> StoredEngine:
        """Upload what the store lacks, and publish the version.

        Content that the store has is not sent. If the connection is lost, the upload continues
        where it stopped.
        """
        digest = await self._upload_all(placement)
        request = store_pb2.PublishRequest(
            engine=self._engine, version=self._version, digest=digest, placement=placement
        )
        call = self._channel.call(self._channel.store.Publish, request, timeout=_PUBLISH_TIMEOUT_S)
        return stored_from_proto(await call)

    async def _upload_all(self, placement: Sequence[str]) -> str:
        """Upload the content that the store lacks; return the digest of the manifest."""
        patience, best = Patience(_PATIENCE_S, self._channel.backoff), -1
        while True:
            opened = await self._open(placement)
            missing = sum(each.size - each.received for each in opened.missing)
            self._done = self._total - missing
            self._on_progress(self._done, self._total)
            if opened.stored or not opened.missing:
                return opened.digest
            if self._done > best:
                patience.reset()
                best = self._done
            try:
                for each in opened.missing:
                    await self._upload(opened.digest, each)
            except Unavailable as error:
                await patience.wait(error)

    async def _open(self, placement: Sequence[str]) -> store_pb2.OpenResponse:
        request = store_pb2.OpenRequest(
            engine=self._engine,
            version=self._version,
            manifest=self._manifest,
            placement=placement,
        )
        return await self._channel.call(self._channel.store.Open, request, timeout=_OPEN_TIMEOUT_S)

    async def _upload(self, digest: str, missing: store_pb2.MissingContent) -> None:
        self._channel.ensure_open()
        path = self._paths[missing.sha256]
        gateway = self._channel.gateway
        try:
            with await asyncio.to_thread(path.open, "rb", buffering=0) as file:
                file.seek(missing.received)
                received = await self._send(self._chunks(digest, missing, file))
        except grpc.aio.AioRpcError as failure:
            raise self._channel.to_error(failure, gateway) from None
        except OSError as error:
            raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
        if received != missing.size:
            raise InvalidInput(f"{path} has changed while it was pushed; push it again")

    async def _send(self, chunks: AsyncIterator[store_pb2.UploadChunk]) -> int:
        """Send the chunks of a content over one call; return the bytes of it that the store has."""
        call = keep_status(self._channel.store.Upload())
        async with TaskBag() as tasks:
            writer = tasks.start_awaited(write_all(call, chunks))
            try:
                return (await call).received
            except asyncio.CancelledError as cancellation:
                if writer.done():
                    writer.result()  # reading the file may have failed
                raise self._channel.cancellation_cause(cancellation) from None
            finally:
                call.cancel()

    async def _chunks(
        self, digest: str, missing: store_pb2.MissingContent, file: FileIO
    ) -> AsyncIterator[store_pb2.UploadChunk]:
        head = store_pb2.UploadChunk(
            engine=self._engine,
            version=self._version,
            digest=digest,
            sha256=missing.sha256,
            offset=missing.received,
        )
        yield head
        while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield store_pb2.UploadChunk(data=data)
            self._done += len(data)
            self._on_progress(min(self._done, self._total), self._total)
