"""``synergai.v1.Store``: push engines, place them on workers, list and remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.entry.access.caller import Role, current_caller
from gateway.hub.store.storage import StoredVersion, parse_placement
from gateway.hub.store.transfers import Pacer, PushKey
from synergai.errors import InvalidInput
from synergai.v1 import store_pb2
from synergai.wire import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.hub.placements import Placements
    from gateway.hub.store.store import EngineStore
    from synergai.wire.server_call import ServerCall


class StoreServicer:
    """Serves ``synergai.v1.Store``."""

    def __init__(self, store: EngineStore, placements: Placements, pacer: Pacer) -> None:
        self._store = store
        self._placements = placements
        self._pacer = pacer

    def handler(self) -> rpc.Service:
        return rpc.Service(
            "synergai.v1.Store",
            {
                "Open": rpc.unary(self.open, store_pb2.OpenRequest),
                "Upload": rpc.client_stream(self.upload, store_pb2.UploadChunk),
                "Publish": rpc.unary(self.publish, store_pb2.PublishRequest),
                "Place": rpc.unary(self.place, store_pb2.PlaceRequest),
                "Remove": rpc.unary(self.remove, store_pb2.RemoveRequest),
                "List": rpc.unary(self.list, store_pb2.ListStoredRequest),
            },
        )

    async def open(
        self, request: store_pb2.OpenRequest, _context: ServerCall
    ) -> store_pb2.OpenResponse:
        """Begin or continue to push a version."""
        caller = current_caller()
        caller.check(Role.OPERATE, engine=request.engine)
        digest, stored, missing = await self._store.open(
            caller, request.engine, request.version, request.manifest, request.placement
        )
        return store_pb2.OpenResponse(
            digest=digest,
            stored=stored,
            missing=[
                store_pb2.MissingContent(sha256=each.sha256, size=each.size, received=each.received)
                for each in missing
            ],
        )

    async def upload(
        self, chunks: AsyncIterator[store_pb2.UploadChunk], _context: ServerCall
    ) -> store_pb2.UploadResponse:
        """Receive the rest of one content; what arrives is kept even if the call is cut off."""
        caller = current_caller()
        push, sha256, received = None, "", 0
        async for chunk in chunks:
            if push is None:
                caller.check(Role.OPERATE, engine=chunk.engine)
                push = PushKey(caller.name, chunk.engine, chunk.version, chunk.digest)
                sha256, received = chunk.sha256, chunk.offset
            else:
                caller.check_valid()
            await self._pacer.wait_turn(len(chunk.data))
            received = await self._store.append(push, sha256, received, chunk.data)
            del chunk
        if push is None:
            raise InvalidInput("the upload has no chunk")
        return store_pb2.UploadResponse(received=received)

    async def publish(
        self, request: store_pb2.PublishRequest, _context: ServerCall
    ) -> store_pb2.StoredEngine:
        caller = current_caller()
        caller.check(Role.OPERATE, engine=request.engine)
        stored = await self._store.publish(
            caller, request.engine, request.version, request.digest, request.placement
        )
        return self._message(stored)

    async def place(
        self, request: store_pb2.PlaceRequest, _context: ServerCall
    ) -> store_pb2.StoredEngine:
        caller = current_caller()
        caller.check(Role.OPERATE, engine=request.engine)
        stored = self._store.get(request.engine, request.version)
        self._placements.check_moved(stored, parse_placement(request.placement))
        stored = await self._store.set_placement(
            caller, request.engine, request.version, request.placement
        )
        return self._message(stored)

    async def remove(
        self, request: store_pb2.RemoveRequest, _context: ServerCall
    ) -> store_pb2.RemoveResponse:
        """Remove a version; the workers that have fetched it remove it as well."""
        current_caller().check(Role.OPERATE, engine=request.engine)
        freed = await self._store.remove(request.engine, request.version)
        return store_pb2.RemoveResponse(freed_bytes=freed)

    async def list(
        self, _request: store_pb2.ListStoredRequest, _context: ServerCall
    ) -> store_pb2.ListStoredResponse:
        """Return the versions of the engines that the caller may observe or operate."""
        caller = current_caller()
        return store_pb2.ListStoredResponse(
            engines=[
                self._message(stored)
                for _, stored in sorted(self._store.versions.items())
                if caller.may(Role.OBSERVE, Role.OPERATE, engine=stored.engine)
            ],
            used_bytes=self._store.used_bytes,
        )

    def _message(self, stored: StoredVersion) -> store_pb2.StoredEngine:
        return store_pb2.StoredEngine(
            engine=stored.engine,
            version=stored.version,
            digest=stored.digest,
            backend=stored.manifest.backend,
            size=stored.manifest.size,
            placement=stored.placement,
            pushed_at=stored.pushed_at,
            pushed_by=stored.pushed_by,
            workers=[
                store_pb2.WorkerPlacement(worker_id=worker.id, placed=placed)
                for worker, placed in self._placements.holders(stored)
            ],
            fault=stored.fault,
            model_sha256=stored.model_sha256,
        )
