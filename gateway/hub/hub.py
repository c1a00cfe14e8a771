"""The hub: registration, heartbeats and state changes of the agents.

An agent dials in and keeps two streams open: control, served here, and work, served by
``gateway.hub.work_streams``. Its worker joins the fleet when both are open and leaves it when
either ends. An agent that breaks the protocol loses its connection, and its assignments are
dispatched to others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.entry.audit.calls import current_call
from gateway.fleet.agent_validation import (
    ProtocolViolation,
    checked_rate,
    checked_seconds,
    engine_from_agent,
    printable_detail,
)
from gateway.hub.connections import HeartbeatMonitor
from gateway.hub.registration import (
    MAX_ENGINES,
    MAX_UNUSABLE,
    joining_worker,
    lacking_text,
    lacks_variant,
    peer_address,
    peer_links,
    unusable_sessions,
    worker_from_registration,
)
from synergai.core.scheduling.events import (
    ConfigurationsUnusable,
    ModeChanged,
    SessionDropped,
    SessionLoaded,
    WorkerDraining,
)
from synergai.domain import EngineName
from synergai.errors import Conflict, InvalidInput, SynergaiError, Unavailable
from synergai.names import validate_name
from synergai.runtime.tasks import TaskBag
from synergai.runtime.text import counted
from synergai.v1 import hub_pb2
from synergai.wire import rpc
from synergai.wire.converters import session_from_proto

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.entry.access.table import AllowedWorkers
    from gateway.entry.access.worker_rules import WorkerRules
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.served_profiles import ServedProfiles
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentConnection, AgentConnections
    from gateway.hub.model_control import ModelControl
    from gateway.hub.placements import Placements
    from gateway.hub.work_streams import WorkStreams
    from gateway.journal.journal import Journal
    from synergai.domain import Engine, WorkerId
    from synergai.runtime.clock import Clock
    from synergai.wire.server_call import ServerCall

_log = logging.getLogger(__name__)

REGISTER_WITHIN_S: Final = 10.0


class Hub:
    """Servicer of ``synergai.v1.Hub``."""

    def __init__(
        self,
        connections: AgentConnections,
        work_streams: WorkStreams,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        profiles: ServedProfiles,
        model_control: ModelControl,
        clock: Clock,
        *,
        rules: WorkerRules,
        placements: Placements,
        journal: Journal,
        heartbeat_s: float,
        work_port: int,
    ) -> None:
        self._connections = connections
        self._work_streams = work_streams
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._profiles = profiles
        self._model_control = model_control
        self._clock = clock
        self._rules = rules
        self._placements = placements
        self._journal = journal
        self._heartbeat_s = heartbeat_s
        self.work_port = work_port
        self._slow_calls = rpc.SlowCalls()
        self._tasks = TaskBag()
        self._tasks.start(self._monitor_heartbeats())

    def handler(self) -> rpc.Service:
        """Return the service's handler for a gRPC server."""
        return rpc.Service(
            "synergai.v1.Hub",
            {
                "Control": rpc.stream(self.control, hub_pb2.AgentControl),
                "Fetch": rpc.server_stream(self.fetch, hub_pb2.FetchRequest),
            },
        )

    async def close(self) -> None:
        """Close all connections."""
        self._connections.close(Unavailable("the gateway is stopping"))
        await self._tasks.close()
        await self._work_streams.close()

    def fetch(
        self, request: hub_pb2.FetchRequest, _context: ServerCall | None
    ) -> AsyncGenerator[hub_pb2.FetchChunk, None]:
        """Serve content of the store to a registered agent; see `Placements.fetch`."""
        return self._placements.fetch(request)

    # --- control ----------------------------------------------------------------------------

    async def control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], context: ServerCall | None
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        """Serve an agent's control stream; one without a context is in this process."""
        connection = self._connections.open()
        if context is not None:
            connection.unread_s = lambda: context.unread_s
            connection.end_call = await self._slow_calls.ending(context)
        timer = asyncio.get_running_loop().call_later(
            REGISTER_WITHIN_S, self._check_registered, connection
        )
        reader = asyncio.create_task(self._read_control(connection, requests, context))
        reader.add_done_callback(connection.control.close_with)
        try:
            while messages := await connection.control.get_batch():
                for message in messages:
                    yield message
        except SynergaiError as error:
            self._connections.refuse(connection, error)
            raise
        finally:
            timer.cancel()
            reader.cancel()
            self._connections.discard(connection)
            self._unregister(connection)
            await asyncio.wait([reader])

    async def _read_control(
        self,
        connection: AgentConnection,
        requests: AsyncIterator[hub_pb2.AgentControl],
        context: ServerCall | None,
    ) -> None:
        async for message in requests:
            kind = message.WhichOneof("message")
            worker = connection.worker
            if worker is None:
                if kind != "register":
                    raise ProtocolViolation("the first message must be `register`")
                await self._register(connection, message.register, context)
                continue
            worker.last_seen_at = self._clock.now()
            match kind:
                case "heartbeat":
                    worker.engines_rss_bytes = message.heartbeat.engines_rss_bytes
                    worker.received_bytes_per_s = checked_rate(message.heartbeat.sent_bytes_per_s)
                    worker.peer_links = peer_links(message.heartbeat)
                    if message.heartbeat.HasField("draw"):
                        worker.power.update(message.heartbeat.draw, worker.last_seen_at)
                    ack = hub_pb2.HeartbeatAck(sequence=message.heartbeat.sequence)
                    connection.control.put(hub_pb2.GatewayControl(heartbeat_ack=ack))
                    self._model_control.enforce_unloads(worker)
                case "session_changed":
                    self._session_changed(worker, message.session_changed)
                case "engine_changed":
                    engine = engine_from_agent(message.engine_changed.engine)
                    if engine.name not in worker.offered and len(worker.offered) >= MAX_ENGINES:
                        raise ProtocolViolation(f"a worker has at most {MAX_ENGINES:,} engines")
                    self._offer(connection, worker, [engine])
                case "configurations_unusable":
                    self._configurations_unusable(worker, message.configurations_unusable)
                case "power_changed":
                    self._power_changed(worker, message.power_changed)
                case "placed":
                    self._placements.report(worker, message.placed)
                case "draining":
                    _log.info("worker %s is draining", worker.id)
                    worker.draining = True
                    self._dispatcher.post(WorkerDraining(worker.id), source=worker)
                case "register":
                    raise ProtocolViolation("this stream is registered already")
                case _:
                    pass  # from a later version; incompatible ones raise the protocol version

    async def _register(
        self, connection: AgentConnection, message: hub_pb2.Register, context: ServerCall | None
    ) -> None:
        call = current_call()
        if call is not None:
            call.worker = call.object = message.worker_id
        worker = worker_from_registration(message, self._clock.now())
        worker.local = context is None
        worker.peer_address = peer_address(message, context)
        worker.peer_certificate = message.peer_certificate
        joining, enrolled = None, False
        if context is not None:
            joining = joining_worker(message, context)
            if message.enrolment_token:  # which is not spent on an id that is taken
                self._check_vacant(worker)
            enrolled = await self._rules.admit(joining, message.enrolment_token)
            if (refusal := self._rules.refusal(joining)) is not None:
                raise refusal  # the rules have changed since
            if call is not None:
                call.credential = self._rules.proof(joining)
        self._check_vacant(worker)
        if (other := self._connections.of_worker(worker.id)) is not None:
            _log.warning("worker %s registered again: closing its old connection", worker.id)
            other.close(Unavailable(f"another agent has registered as {worker.id!r}"))
            self._unregister(other)
        self._connections.register(connection, worker, joining)
        self._offer(connection, worker, list(worker.offered.values()))
        registered = hub_pb2.Registered(
            session=connection.id,
            heartbeat_s=self._heartbeat_s,
            work_port=self.work_port,
            cluster=self._journal.cluster,
            epoch=self._journal.epoch,
        )
        connection.control.put(hub_pb2.GatewayControl(registered=registered))
        self._placements.send(connection)
        if call is not None:
            call.end(reason="enrolled" if enrolled else "")
        _log.info(
            "worker %s of class %s registered with %s, agent %s",
            worker.id,
            worker.worker_class,
            counted(len(worker.engines), "engine"),
            worker.agent_version,
        )

    def _check_vacant(self, worker: ConnectedWorker) -> None:
        """Check that no other process is connected under a worker's id."""
        other = self._connections.of_worker(worker.id)
        if (
            other is not None
            and other.worker is not None
            and _differ(worker.instance, other.worker.instance)
        ):
            raise Conflict(
                f"another agent is connected as {worker.id!r}: start one of them with another "
                "--worker-id"
            )

    def follow_store(self) -> None:
        """Take changed versions in the store into account."""
        for engines in self._catalogue.review():
            self._apply_engines(engines)

    def forget_engine(self, name: str) -> EngineName:
        """Decide again which description of an engine is in service; return its name.

        One that no connected worker can run is removed from the list of engines, until a worker
        offers it again.
        """
        engine = EngineName(name)
        self._apply_engines(self._catalogue.forget(name))
        if self._catalogue.drop(engine):
            for _, worker in self._connections.registered():
                if worker.offered.pop(engine, None) is not None:
                    worker.forgotten.add(engine)
                worker.engines.pop(engine, None)
        _log.info("the description of engine %s is forgotten", name)
        return engine

    def set_rules(self, rows: tuple[AllowedWorkers, ...] | None) -> None:
        """Set the access table's rows for workers, and apply them to the connected ones."""
        self._rules.set_rows(rows)
        self.review()

    def review(self) -> None:
        """Apply changed rules to the connected workers."""
        for connection, worker in self._connections.registered():
            if connection.joining is None:
                continue
            if (refusal := self._rules.refusal(connection.joining)) is not None:
                connection.close(refusal)  # which refuses it, with the reason
                self._unregister(connection)
                continue
            self._offer(connection, worker, list(worker.offered.values()))
            self._placements.send(connection)

    def _offer(
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
                self._apply_engines(self._catalogue.withdraw(worker.id, engine.name))
                self._apply_engines({worker.id: replace(engine, fault=fault, pending=False)})
            else:
                allowed.append(engine)
        self._journal.add_engines(frozenset(engine.name for engine in allowed))
        for engine in allowed:
            self._apply_engines(self._catalogue.update(worker.id, engine))

    def _apply_engines(self, engines: dict[WorkerId, Engine]) -> None:
        """Set an engine on each worker as the catalogue has resolved it."""
        for worker_id, engine in engines.items():
            connection = self._connections.of_worker(worker_id)
            if connection is None or (worker := connection.worker) is None:
                continue
            if worker.engines.get(engine.name) == engine:
                continue
            if engine.fault:
                asked = engine.name in worker.being_removed
                level = logging.INFO if asked or engine.pending else logging.WARNING
                _log.log(level, "worker %s: engine %s: %s", worker_id, engine.name, engine.fault)
            _log_unused_variants(worker, engine)
            _log_other_samples(worker, engine)
            worker.engines[engine.name] = engine
            for event in self._profiles.engine_changed(worker, engine):
                self._dispatcher.post(event)
            self._dispatcher.post(worker.engines_changed(), source=worker)
            self._dispatcher.log_unprofiled(worker, [engine.name])

    def _session_changed(self, worker: ConnectedWorker, message: hub_pb2.SessionChanged) -> None:
        session = session_from_proto(message.session)
        if session.engine in worker.forgotten and message.resident:
            return
        if session.engine not in worker.engines and session.engine not in worker.forgotten:
            raise ProtocolViolation(f"worker {worker.id!r} has no engine {session.engine!r}")
        refused = message.resident and lacks_variant(worker.offered[session.engine], session)
        if message.resident and not refused:
            setup_s = sum(
                checked_seconds(seconds, f"loading {session.engine!r}")
                for seconds in (
                    message.backend_start_s,
                    message.model_load_s,
                    message.data_preparation_s,
                )
            )
            worker.sessions.add(session)
            loaded = SessionLoaded(worker.id, session, setup_s, message.bytes)
            self._dispatcher.preloads.loaded(worker.id, session, setup_s)
            self._dispatcher.post(loaded, source=worker)  # which may use the session at once
            self._model_control.on_session_changed(worker, session, resident=True)
            return
        fault = lacking_text(session) if refused else printable_detail(message.fault)
        if fault:
            _log.warning("worker %s: cannot load %s: %s", worker.id, session.engine, fault)
        worker.sessions.discard(session)
        dropped = SessionDropped(worker.id, session, message.no_room, message.bytes)
        self._dispatcher.post(dropped, source=worker)
        self._dispatcher.preloads.dropped(worker.id, session)
        self._model_control.on_session_changed(worker, session, resident=False, fault=fault)

    def _configurations_unusable(
        self, worker: ConnectedWorker, message: hub_pb2.ConfigurationsUnusable
    ) -> None:
        engine = EngineName(message.engine)
        if engine in worker.forgotten:
            return
        if engine not in worker.engines:
            raise ProtocolViolation(f"worker {worker.id!r} has no engine {message.engine!r}")
        found = unusable_sessions(message.sessions)
        if any(session.engine != engine for session in found):
            raise ProtocolViolation("unusable configurations of another engine")
        others = {s: reason for s, reason in worker.unusable.items() if s.engine != engine}
        for session, reason in found.items():
            if worker.unusable.get(session) != reason:
                text = "worker %s: engine %s cannot be used with %s: %s"
                _log.warning(text, worker.id, engine, session.configuration, reason)
        worker.unusable = others | found
        if len(worker.unusable) > MAX_UNUSABLE:
            raise ProtocolViolation(f"more than {MAX_UNUSABLE:,} unusable configurations")
        configurations = frozenset(session.configuration for session in found)
        changed = ConfigurationsUnusable(worker.id, engine, configurations)
        self._dispatcher.post(changed, source=worker)
        # What could run in no configuration may be able to now.
        self._dispatcher.post(worker.engines_changed(), source=worker)

    def _power_changed(self, worker: ConnectedWorker, message: hub_pb2.PowerChanged) -> None:
        switch_s = checked_seconds(message.switch_s, "switching")
        worker.power.mode = validate_name(message.mode, "power mode") if message.mode else ""
        if switch_s > 0:
            worker.power.switch_s = switch_s
        # switch_s is 0 unless the agent switched for an assignment.
        self._dispatcher.post(ModeChanged(worker.id, worker.power.mode, switch_s), source=worker)

    def _check_registered(self, connection: AgentConnection) -> None:
        if connection.worker is None:
            connection.close(InvalidInput(f"no `register` within {REGISTER_WITHIN_S:g} s"))

    def _unregister(self, connection: AgentConnection) -> None:
        """Remove the worker of a connection whose control stream has ended."""
        worker = self._connections.unregister(connection)
        if worker is None:
            return
        for engines in self._catalogue.remove_worker(worker.id):
            self._apply_engines(engines)
        if forgotten := self._catalogue.forget_surplus():
            _log.warning("%d engines without a worker are forgotten: too many", len(forgotten))
            self._journal.remove_engines(forgotten)
        worker.orders.close(Unavailable("the control stream has ended"))
        self._dispatcher.remove_worker(worker)
        self._model_control.on_worker_left(worker)
        _log.info("worker %s has left", worker.id)

    # --- heartbeats -------------------------------------------------------------------------

    async def _monitor_heartbeats(self) -> None:
        monitor = HeartbeatMonitor(self._heartbeat_s, self._clock.now())
        while True:
            await asyncio.sleep(monitor.interval_s)
            lost = monitor.lost(self._connections.registered(), self._clock.now())
            for connection, _, reason in lost:
                _log.warning("%s: it is lost", reason)
                connection.close(Unavailable(reason))
                self._unregister(connection)


def _log_unused_variants(worker: ConnectedWorker, engine: Engine) -> None:
    """Log the files of an engine that a worker has stopped using."""
    before = worker.engines.get(engine.name)
    for each in engine.unused_variants:
        if before is None or before.fault or each not in before.unused_variants:
            what = f"variant {each.variant}" if each.variant else "changed files"
            text = "worker %s: engine %s: %s not used: %s"
            _log.warning(text, worker.id, engine.name, what, each.reason)


def _log_other_samples(worker: ConnectedWorker, engine: Engine) -> None:
    """Log once that a worker has other samples than the rest."""
    before = worker.engines.get(engine.name)
    known = before is not None and before.other_samples == engine.other_samples
    if engine.other_samples and not known:
        _log.warning("worker %s: engine %s: %s", worker.id, engine.name, engine.other_samples)


def _differ(one: str, other: str) -> bool:
    return bool(one and other) and one != other
