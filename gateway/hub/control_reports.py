"""What agents offer and report on their control streams, and what follows from it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from synergai.core.scheduling.events import (
    ConfigurationsUnusable,
    ModeChanged,
    SessionDropped,
    SessionLoaded,
    WorkerDraining,
)
from synergai.errors import Unavailable
from synergai.v1 import hub_pb2
from synergai.wire.agent_messages import (
    MAX_ENGINES,
    MAX_UNUSABLE,
    ControlMessage,
    Draining,
    EngineChange,
    Heartbeat,
    PlacementReport,
    PowerChange,
    ProtocolViolation,
    Registration,
    SessionChange,
    UnusableConfigurations,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.entry.access.workers import WorkerRules
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.served_profiles import ServedProfiles
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnection, AgentConnections
    from gateway.hub.model_control import ModelControl
    from gateway.hub.placements import Placements
    from gateway.journal.journal import Journal
    from synergai.domain import Engine, EngineName, Session, WorkerId

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
            if not engine.fault:  # its model directory has it
                worker.being_removed.discard(engine.name)
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
    """Log what a worker does not use of an engine from now on."""
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


class ControlReports:
    """Applies the reports of registered agents."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        engines: OfferedEngines,
        model_control: ModelControl,
        placements: Placements,
    ) -> None:
        self._dispatcher = dispatcher
        self._engines = engines
        self._model_control = model_control
        self._placements = placements

    def apply(
        self,
        connection: AgentConnection,
        worker: ConnectedWorker,
        message: ControlMessage | None,
        now: float,
    ) -> None:
        worker.last_seen_at = now
        match message:
            case Heartbeat():
                self._apply_heartbeat(connection, worker, message)
            case SessionChange():
                self._apply_session(worker, message)
            case EngineChange(engine):
                if engine.name not in worker.offered and len(worker.offered) >= MAX_ENGINES:
                    raise ProtocolViolation(f"a worker has at most {MAX_ENGINES:,} engines")
                self._engines.offer(connection, worker, [engine])
            case UnusableConfigurations():
                self._apply_unusable(worker, message)
            case PowerChange(mode, switch_s):
                worker.power.mode = mode
                if switch_s > 0:
                    worker.power.switch_s = switch_s
                self._dispatcher.post(ModeChanged(worker.id, mode, switch_s), source=worker)
            case PlacementReport():
                self._placements.report(worker, message)
            case Draining():
                _log.info("worker %s is draining", worker.id)
                worker.draining = True
                self._dispatcher.post(WorkerDraining(worker.id), source=worker)
            case Registration():
                raise ProtocolViolation("this stream is registered already")
            case None:
                pass  # from a later version; incompatible ones raise the protocol version

    def worker_left(self, worker: ConnectedWorker) -> None:
        """Remove a worker whose control stream has ended."""
        self._engines.withdraw_all(worker)
        worker.orders.close(Unavailable("the control stream has ended"))
        self._dispatcher.remove_worker(worker)
        self._model_control.on_worker_left(worker)
        _log.info("worker %s has left", worker.id)

    def _apply_heartbeat(
        self, connection: AgentConnection, worker: ConnectedWorker, heartbeat: Heartbeat
    ) -> None:
        worker.engines_rss_bytes = heartbeat.engines_rss_bytes
        worker.sent_bytes_per_s = heartbeat.received_bytes_per_s
        worker.received_bytes_per_s = worker.measure_received() or heartbeat.sent_bytes_per_s
        worker.peer_links = heartbeat.peers
        if heartbeat.draw is not None:
            worker.power.update(heartbeat.draw)
        ack = hub_pb2.HeartbeatAck(sequence=heartbeat.sequence)
        connection.control.put(hub_pb2.GatewayControl(heartbeat_ack=ack))
        self._model_control.enforce_unloads(worker)

    def _apply_session(self, worker: ConnectedWorker, change: SessionChange) -> None:
        session = change.session
        if session.engine in worker.forgotten and change.resident:
            return
        if session.engine not in worker.engines and session.engine not in worker.forgotten:
            raise ProtocolViolation(f"worker {worker.id!r} has no engine {session.engine!r}")
        refused = change.resident and lacks_variant(worker.offered[session.engine], session)
        if change.resident and not refused:
            worker.sessions.add(session)
            loaded = SessionLoaded(worker.id, session, change.setup_s, change.bytes)
            self._dispatcher.post(loaded, source=worker)  # which may use the session at once
            self._model_control.on_session_changed(worker, session, resident=True)
            return
        fault = lacking_text(session) if refused else change.fault
        if fault:
            _log.warning("worker %s: cannot load %s: %s", worker.id, session.engine, fault)
        worker.sessions.discard(session)
        dropped = SessionDropped(worker.id, session, change.no_room, change.bytes)
        self._dispatcher.post(dropped, source=worker)
        self._model_control.on_session_changed(worker, session, resident=False, fault=fault)

    def _apply_unusable(self, worker: ConnectedWorker, change: UnusableConfigurations) -> None:
        engine = change.engine
        if engine in worker.forgotten:
            return
        if engine not in worker.engines:
            raise ProtocolViolation(f"worker {worker.id!r} has no engine {engine!r}")
        others = {s: reason for s, reason in worker.unusable.items() if s.engine != engine}
        for session, reason in change.reasons.items():
            if worker.unusable.get(session) != reason:
                text = "worker %s: engine %s cannot be used with %s: %s"
                _log.warning(text, worker.id, engine, session.configuration, reason)
        worker.unusable = others | dict(change.reasons)
        if len(worker.unusable) > MAX_UNUSABLE:
            raise ProtocolViolation(f"more than {MAX_UNUSABLE:,} unusable configurations")
        configurations = frozenset(session.configuration for session in change.reasons)
        changed = ConfigurationsUnusable(worker.id, engine, configurations)
        self._dispatcher.post(changed, source=worker)
        # What could run in no configuration may be able to now.
        self._dispatcher.post(worker.engines_changed(), source=worker)


def lacks_variant(engine: Engine, session: Session) -> bool:
    """Return whether a session has a variant that its engine, if described, does not have.

    An agent may load one that has just been removed from its folder, so this is no violation.
    """
    variant = session.configuration.variant
    return bool(variant) and not engine.fault and not engine.has_variant(variant)


def lacking_text(session: Session) -> str:
    """Return why a session that `lacks_variant` is not used."""
    return f"engine {session.engine!r} has no variant {session.configuration.variant!r} there"
