"""The engines that workers offer, as the catalogue resolves them for each worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.entry.access.worker_rules import WorkerRules
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.served_profiles import ServedProfiles
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnection, AgentConnections
    from gateway.journal.journal import Journal
    from synergai.domain import Engine, EngineName, WorkerId

_log = logging.getLogger(__name__)


class OfferedEngines:
    """Records what workers offer, and tells them, the core and the dictionary what follows."""

    def __init__(
        self,
        connections: AgentConnections,
        catalogue: Catalogue,
        profiles: ServedProfiles,
        dispatcher: Dispatcher,
        journal: Journal,
        rules: WorkerRules,
    ) -> None:
        self._connections = connections
        self._catalogue = catalogue
        self._profiles = profiles
        self._dispatcher = dispatcher
        self._journal = journal
        self._rules = rules

    def offer(
        self, connection: AgentConnection, worker: ConnectedWorker, engines: Iterable[Engine]
    ) -> None:
        """Record engines as their agent describes them; ignore those that it may not serve."""
        joining = connection.joining
        allowed: list[Engine] = []
        for engine in engines:
            worker.offered[engine.name] = engine
            worker.forgotten.discard(engine.name)
            fault = "" if joining is None else self._rules.engine_fault(joining, engine)
            if fault:
                self._apply(self._catalogue.withdraw(worker.id, engine.name))
                self._apply({worker.id: replace(engine, fault=fault, pending=False)})
            else:
                allowed.append(engine)
        self._journal.add_engines(frozenset(engine.name for engine in allowed))
        for engine in allowed:
            self._apply(self._catalogue.update(worker.id, engine))

    def withdraw_all(self, worker: ConnectedWorker) -> None:
        """Remove the offers of a worker that has left."""
        for engines in self._catalogue.remove_worker(worker.id):
            self._apply(engines)
        if forgotten := self._catalogue.forget_surplus():
            _log.warning("%d engines without a worker are forgotten: too many", len(forgotten))
            self._journal.remove_engines(forgotten)

    def follow_store(self) -> None:
        """Take changed versions in the store into account."""
        for engines in self._catalogue.review():
            self._apply(engines)

    async def forget(self, engine: EngineName) -> None:
        """Decide again which description of an engine is in service, durably.

        One that no connected worker can run is removed from the list of engines, until a worker
        offers it again.
        """
        self._apply(self._catalogue.forget(engine))
        if self._catalogue.drop(engine):
            for _, worker in self._connections.registered():
                if worker.offered.pop(engine, None) is not None:
                    worker.forgotten.add(engine)
                worker.engines.pop(engine, None)
        _log.info("the description of engine %s is forgotten", engine)
        await self._journal.set_description(engine, None)
        if not self._catalogue.is_known(engine):
            await self._journal.forget_engines([engine])

    def _apply(self, engines: Mapping[WorkerId, Engine]) -> None:
        """Set an engine on each worker as the catalogue has resolved it."""
        for worker_id, engine in engines.items():
            connection = self._connections.of_worker(worker_id)
            if connection is None or (worker := connection.worker) is None:
                continue
            if worker.engines.get(engine.name) == engine:
                continue
            _log_change(worker, engine)
            worker.engines[engine.name] = engine
            for event in self._profiles.engine_changed(worker, engine):
                self._dispatcher.post(event)
            self._dispatcher.post(worker.engines_changed(), source=worker)
            self._dispatcher.log_unprofiled(worker, [engine.name])


def _log_change(worker: ConnectedWorker, engine: Engine) -> None:
    """Log what a worker does not use of an engine from now on, and that it has other samples."""
    before = worker.engines.get(engine.name)
    where = f"worker {worker.id}: engine {engine.name}"
    if engine.fault:
        asked = engine.name in worker.being_removed
        level = logging.INFO if asked or engine.pending else logging.WARNING
        _log.log(level, "%s: %s", where, engine.fault)
    for each in engine.unused_variants:
        if before is None or before.fault or each not in before.unused_variants:
            what = f"variant {each.variant}" if each.variant else "changed files"
            _log.warning("%s: %s not used: %s", where, what, each.reason)
    known = before is not None and before.other_samples == engine.other_samples
    if engine.other_samples and not known:
        _log.warning("%s: %s", where, engine.other_samples)
