"""Engines of model directories that workers send into the store, as the gateway has asked them to.

Such a version belongs to its worker until a client pushes or places it, and is placed on no worker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from gateway.entry.access.caller import Caller
from gateway.hub.store.storage import FROM_WORKER
from gateway.hub.store.transfers import PushKey
from synergai.domain import EngineName
from synergai.errors import EngineUnusable, InvalidInput, PermissionDenied, Unavailable
from synergai.models.manifest import read_manifest
from synergai.names import split_version
from synergai.runtime.text import printable
from synergai.v1 import hub_pb2, store_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gateway.entry.access.workers import WorkerRules
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnection, AgentConnections
    from gateway.hub.store.store import EngineStore
    from gateway.hub.store.transfers import Missing, Pacer
    from synergai.wire.server_call import ServerCall

WITHIN_S: Final = 600.0
"""Time of one attempt; the next one continues where it has ended."""
IDLE_S: Final = 30.0
"""Time in which the next message has to arrive."""


class EngineCopies:
    """Asks workers for engines, and stores what they send."""

    def __init__(
        self, store: EngineStore, connections: AgentConnections, rules: WorkerRules, pacer: Pacer
    ) -> None:
        self._store = store
        self._connections = connections
        self._rules = rules
        self._pacer = pacer
        # Done once an engine is stored or cannot be, by the id of its worker's connection.
        self._awaited: dict[tuple[str, EngineName], asyncio.Future[None]] = {}

    async def bring(self, worker: ConnectedWorker, engine: EngineName) -> None:
        """Copy an engine from the model directory of a worker into the store."""
        connection = self._connections.of_worker(worker.id)
        if connection is None:
            raise Unavailable(f"worker {worker.id!r} has left")
        stored = asyncio.get_running_loop().create_future()
        self._awaited[connection.id, engine] = stored
        order = hub_pb2.SendEngine(engine=engine)
        connection.control.put(hub_pb2.GatewayControl(send=order))
        try:
            async with asyncio.timeout(WITHIN_S):
                await stored
        except TimeoutError:
            raise Unavailable(
                f"worker {worker.id!r} has not sent it within {WITHIN_S:g} s"
            ) from None
        finally:
            del self._awaited[connection.id, engine]

    async def receive(
        self, chunks: AsyncIterator[hub_pb2.EngineChunk], _context: ServerCall | None = None
    ) -> AsyncGenerator[store_pb2.OpenResponse, None]:
        """Store an engine that a worker was asked for; yield what the store lacks of it."""
        head = await _next(chunks)
        connection, worker = self._connections.authenticate(head.session)
        stored = self._awaited.get((connection.id, EngineName(head.engine)))
        if stored is None:
            raise PermissionDenied(f"worker {worker.id!r} was not asked for this engine")
        fault: Exception | None = Unavailable(f"worker {worker.id!r} has left while it sent it")
        try:
            await self._check(connection, worker, head)
            name, version = split_version(head.engine)
            number, manifest = int(version), head.manifest
            # Without a grant, it has to send all content that it claims to have.
            caller = Caller(f"{FROM_WORKER}{worker.id}", "", ())
            # Its own worker does not fetch it; no selector at all stands for all workers.
            place = (f"worker={worker.id}",)
            digest, _, missing = await self._store.open(caller, name, number, manifest, place)
            contents = [store_pb2.MissingContent(**asdict(each)) for each in missing]
            yield store_pb2.OpenResponse(digest=digest, missing=contents)
            push = PushKey(caller.name, name, number, digest)
            for each in missing:
                await self._receive(push, each, chunks, stored)
            await self._store.publish(caller, name, number, digest, place)
            fault = None
        except Exception as error:
            fault = error
            raise
        finally:
            if not stored.done():
                stored.set_exception(fault) if fault else stored.set_result(None)

    async def _receive(
        self,
        push: PushKey,
        content: Missing,
        chunks: AsyncIterator[hub_pb2.EngineChunk],
        stored: asyncio.Future[None],
    ) -> None:
        received = content.received
        while received < content.size:
            data = (await _next(chunks)).data
            if not data or stored.done():
                raise Unavailable("its worker has stopped to send it")
            await self._pacer.wait_turn(len(data))
            received = await self._store.append(push, content.sha256, received, data)

    async def _check(
        self, connection: AgentConnection, worker: ConnectedWorker, head: hub_pb2.EngineChunk
    ) -> None:
        """Check that a worker sends the file that it offers and may serve, and that can be cut."""
        if head.fault:
            raise EngineUnusable(f"worker {worker.id!r} cannot send it: {printable(head.fault)}")
        manifest = await asyncio.to_thread(read_manifest, head.manifest)  # it may be large
        offered = worker.offered.get(EngineName(head.engine))
        if offered is None or offered.digest != manifest.model_sha256:
            raise Unavailable(f"worker {worker.id!r} has another file of the engine now")
        joining = connection.joining
        if joining is not None and not self._rules.may_have(joining, offered.name, offered.digest):
            raise PermissionDenied(
                f"the access table does not allow worker {worker.id!r} to serve its file"
            )
        if not manifest.model.endswith(".onnx"):
            raise InvalidInput(f"its model {manifest.model} is not an ONNX file, and cannot be cut")


async def _next(chunks: AsyncIterator[hub_pb2.EngineChunk]) -> hub_pb2.EngineChunk:
    """Return the next message of a worker; an empty one at the end."""
    try:
        async with asyncio.timeout(IDLE_S):
            return await anext(chunks, hub_pb2.EngineChunk())
    except TimeoutError:
        raise Unavailable("its worker has stopped to send it") from None
