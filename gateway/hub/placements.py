"""Which engine versions of the store each connected worker should have, and whether it has them.

The desired state is declarative: an agent is told all of its versions after its registration and
whenever they change, and reports what it has made of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.hub.store.storage import selects
from synergai.errors import InvalidInput, Overloaded, PermissionDenied, Unavailable
from synergai.names import versioned
from synergai.v1 import common_pb2, hub_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from gateway.entry.access.workers import WorkerRules
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnection, AgentConnections
    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from gateway.hub.store.transfers import Pacer
    from synergai.domain import EngineName
    from synergai.wire.agent_messages import PlacementReport
    from synergai.wire.server_call import ServerCall

MAX_FETCHES: Final = 2
"""Calls of one worker at a time: one that its agent has given up may not have ended yet."""
_CHUNK: Final = 256 << 10
"""Bytes of a message: few enough to send within a millisecond, and enough to need few messages."""
_PIECE: Final = 2 << 20
"""Bytes read from the store at a time."""

_log = logging.getLogger(__name__)


class Placements:
    """The versions that are placed on the connected workers.

    Attributes:
        withholds: returns whether a version is not sent to further workers for now. Call `apply`
            when that ends.
    """

    def __init__(
        self, store: EngineStore, connections: AgentConnections, rules: WorkerRules, pacer: Pacer
    ) -> None:
        self._store = store
        self._connections = connections
        self._rules = rules
        self._pacer = pacer
        self.withholds: Callable[[EngineName], bool] = lambda _: False
        store.follow(self.apply)

    def apply(self) -> None:
        """Tell all connected workers what they should have, if that has changed."""
        for connection, _ in self._connections.registered():
            self.send(connection)

    def removed(self, fetched: Iterable[EngineName]) -> set[EngineName]:
        """Return the engines among those that a worker has fetched that the store has no longer.

        A worker that comes back still has what was removed meanwhile, for a moment.
        """
        return {name for name in fetched if self._store.loaded and self._store.of(name) is None}

    def send(self, connection: AgentConnection) -> None:
        """Tell a worker what it should have, if that has changed.

        Nothing is sent before the store is loaded: the worker would remove what it has.
        """
        worker = connection.worker
        if worker is None or not worker.backends or not self._store.loaded:
            return
        wanted = {
            key: stored
            for key, stored in self._store.versions.items()
            if self._is_placed(connection, worker, stored)
            and (
                key in worker.placed
                or stored.name in worker.offered
                or not self.withholds(stored.name)
            )
        }
        digests = {key: stored.digest for key, stored in wanted.items()}
        known = {key: placed.digest for key, placed in worker.placed.items()}
        if digests == known and worker.placements_sent:
            return
        worker.placements_sent = True
        worker.being_removed |= {
            versioned(*map(str, key))
            for key in known.keys() - digests.keys()
            if worker.placed[key].fetched
        }
        worker.being_removed -= {stored.name for stored in wanted.values()}
        worker.placed = {
            key: worker.placed[key]
            if known.get(key) == stored.digest
            else common_pb2.Placed(
                engine=stored.engine,
                version=stored.version,
                digest=stored.digest,
                size=stored.manifest.size,
            )
            for key, stored in wanted.items()
        }
        worker.fetchable = frozenset(
            sha256
            for stored in wanted.values()
            for sha256 in (stored.digest, *stored.manifest.contents)
        )
        message = hub_pb2.Placements(
            placements=[
                hub_pb2.Placement(
                    engine=stored.engine,
                    version=stored.version,
                    digest=stored.digest,
                    size=stored.manifest.size,
                )
                for stored in wanted.values()
            ]
        )
        connection.control.put(hub_pb2.GatewayControl(placements=message))

    def report(self, worker: ConnectedWorker, message: PlacementReport) -> None:
        """Record what an agent reports of a version; one that is no longer placed is ignored."""
        key = message.engine, message.version
        known = worker.placed.get(key)
        if known is None or known.digest != message.digest:
            return
        placed = common_pb2.Placed(
            engine=known.engine,
            version=known.version,
            digest=known.digest,
            state=message.state,
            received=min(message.received, known.size),
            size=known.size,
            fault=message.fault,
            fetched=message.fetched,
        )
        worker.placed[key] = placed
        what = f"worker {worker.id}: version {placed.version} of engine {placed.engine}"
        if placed.fault and placed.fault != known.fault:
            _log.warning("%s: %s", what, placed.fault)
        elif placed.state == common_pb2.PLACED_STATE_INSTALLED != known.state:
            _log.info("%s is installed", what)

    def holders(self, stored: StoredVersion) -> Iterator[tuple[ConnectedWorker, common_pb2.Placed]]:
        """Yield the connected workers that a version is placed on, and what became of it there."""
        for _, worker in self._connections.registered():
            placed = worker.placed.get((stored.engine, stored.version))
            if placed is None:
                continue
            engine = worker.engines.get(stored.name)
            installed = placed.state == common_pb2.PLACED_STATE_INSTALLED
            if installed and engine is not None and engine.fault and not engine.pending:
                failed = common_pb2.Placed(state=common_pb2.PLACED_STATE_FAILED, fault=engine.fault)
                placed = common_pb2.Placed.FromString(placed.SerializeToString())
                placed.MergeFrom(failed)
            yield worker, placed

    def candidates(self, stored: StoredVersion) -> list[ConnectedWorker]:
        """Return the connected workers that a version, or stages of it, may be placed on."""
        may_have = self._may_have if stored.source else self._is_placed
        return [each[1] for each in self._connections.registered() if may_have(*each, stored)]

    def check_moved(self, stored: StoredVersion, placement: tuple[str, ...]) -> None:
        """Check that another placement does not withdraw a version from all connected workers."""
        holders = ", ".join(worker.id for worker, _ in self.holders(stored))
        moved = replace(stored, placement=placement)
        registered = self._connections.registered()
        if holders and not any(self._is_placed(*each, moved) for each in registered):
            wanted = " or ".join(placement)
            raise InvalidInput(
                f"no connected worker that can run {stored.engine!r} matches {wanted}; "
                f"it stays on {holders}: to withdraw it, use 'synergai engines remove'"
            )

    async def fetch(
        self, request: hub_pb2.FetchRequest, _context: ServerCall | None = None
    ) -> AsyncGenerator[hub_pb2.FetchChunk, None]:
        """Yield content of a version that is placed on the calling worker, from an offset."""
        _, worker = self._connections.authenticate(request.session)
        if worker.fetches >= MAX_FETCHES:
            raise Overloaded(f"worker {worker.id!r} fetches {MAX_FETCHES} files already")
        worker.fetches += 1
        try:
            offset, size = request.offset, self._size(worker, request.sha256)
            if offset > size:
                raise InvalidInput(f"the content has {size:,} bytes, fewer than {offset:,}")
            while offset < size:
                # Connection and placement may have ended since.
                self._connections.authenticate(request.session)
                self._size(worker, request.sha256)
                piece = await self._store.read(request.sha256, offset, _PIECE)
                if not piece:
                    raise Unavailable("the content is shorter in the store than it should be")
                for start in range(0, len(piece), _CHUNK):
                    data = piece[start : start + _CHUNK]
                    await self._pacer.wait_turn(len(data))
                    yield hub_pb2.FetchChunk(data=data)
                offset += len(piece)
        finally:
            worker.fetches -= 1

    def _size(self, worker: ConnectedWorker, sha256: str) -> int:
        if sha256 not in worker.fetchable:
            raise PermissionDenied(f"the content is not placed on worker {worker.id!r}")
        return self._store.content_size(sha256)

    def _is_placed(
        self, connection: AgentConnection, worker: ConnectedWorker, stored: StoredVersion
    ) -> bool:
        return (
            worker.id != stored.source
            and selects(stored.placement, worker.id, worker.worker_class, worker.labels)
            and self._may_have(connection, worker, stored)
        )

    def _may_have(
        self, connection: AgentConnection, worker: ConnectedWorker, stored: StoredVersion
    ) -> bool:
        joining = connection.joining
        return stored.manifest.backend in worker.backends and (
            joining is None or self._rules.may_have(joining, stored.name, stored.model_sha256)
        )
