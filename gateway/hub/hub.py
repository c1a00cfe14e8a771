"""The hub: the control streams of the agents, from registration to the loss of a worker.

An agent dials in and keeps two streams open: control, served here, and work, served by
``gateway.hub.work_streams``. Its worker joins the fleet when both are open and leaves it when
either ends. An agent that breaks the protocol loses its connection, and its assignments are
dispatched to others.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.entry.access.authenticator import peer_certificate
from gateway.entry.access.workers import JoiningWorker, WorkerRules
from gateway.entry.audit import current_call
from gateway.fleet.worker import ConnectedWorker, Order, WorkerPower
from gateway.hub.connections import AgentConnection, AgentConnections, HeartbeatMonitor
from gateway.hub.control_reports import ControlReports, OfferedEngines, lacking_text, lacks_variant
from synergai.domain import REMOVED
from synergai.errors import Conflict, InvalidInput, SynergaiError, Unauthenticated, Unavailable
from synergai.runtime.send_queue import SendQueue
from synergai.runtime.tasks import TaskBag
from synergai.runtime.text import counted
from synergai.v1 import hub_pb2
from synergai.wire import rpc
from synergai.wire.agent_messages import ProtocolViolation, Registration, read_control

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Collection

    from gateway.entry.access.table import AllowedWorkers
    from gateway.hub.copies import EngineCopies
    from gateway.hub.placements import Placements
    from gateway.hub.work_streams import WorkStreams
    from synergai.domain import EngineName
    from synergai.runtime.clock import Clock
    from synergai.wire.server_call import ServerCall

_log = logging.getLogger(__name__)

REGISTER_WITHIN_S: Final = 10.0
_ALIKE: Final = (
    {field.name for field in fields(ConnectedWorker)} & {*Registration.__struct_fields__}
) - {"engines", "sessions"}
"""Fields of a worker that are those of its registration."""


class Hub:
    """Servicer of ``synergai.v1.Hub``.

    Args:
        registered: what every agent is told when it has registered; its session is added.
    """

    def __init__(
        self,
        connections: AgentConnections,
        work_streams: WorkStreams,
        engines: OfferedEngines,
        placements: Placements,
        copies: EngineCopies,
        reports: ControlReports,
        rules: WorkerRules,
        clock: Clock,
        registered: hub_pb2.Registered,
    ) -> None:
        self._connections = connections
        self._work_streams = work_streams
        self._engines = engines
        self._placements = placements
        self._copies = copies
        self._reports = reports
        self._rules = rules
        self._clock = clock
        self._registered = registered
        self._slow_calls = rpc.SlowCalls()
        self._reading = TaskBag()
        self._tasks = TaskBag()
        self._tasks.start(self._monitor_heartbeats())

    @property
    def work_port(self) -> int:
        return self._registered.work_port

    def handler(self) -> rpc.Service:
        return rpc.Service(
            "synergai.v1.Hub",
            {
                "Control": rpc.stream(self.control, hub_pb2.AgentControl),
                "Fetch": rpc.server_stream(self._placements.fetch, hub_pb2.FetchRequest),
                "Send": rpc.stream(self._copies.receive, hub_pb2.EngineChunk),
            },
        )

    async def close(self) -> None:
        self._connections.close(Unavailable("the gateway is stopping"))
        await self._tasks.close()
        await self._work_streams.close()

    async def control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], context: ServerCall | None
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        """Serve an agent's control stream; one without a context is in this process."""
        connection = self._connections.open()
        if context is not None:
            connection.unread_s = lambda: context.unread_s
            connection.end_call = await self._slow_calls.ending(context)
        timer = asyncio.get_running_loop().call_later(
            REGISTER_WITHIN_S, _check_registered, connection
        )
        reader = self._reading.start_awaited(self._read_control(connection, requests, context))
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
            if (worker := connection.worker) is not None:
                now = self._clock.now()
                self._reports.apply(connection, worker, read_control(message), now)
                continue
            if (call := current_call()) is not None:  # for the audit of a refusal, too
                call.worker = call.object = message.register.worker_id
            registration = read_control(message)
            if not isinstance(registration, Registration):
                raise ProtocolViolation("the first message must be `register`")
            self._register(connection, registration, context)

    # --- registration -----------------------------------------------------------------------

    def _register(
        self, connection: AgentConnection, registration: Registration, context: ServerCall | None
    ) -> None:
        call = current_call()
        worker = worker_from_registration(registration, context, self._clock.now())
        joining = None
        if context is not None:
            joining = joining_worker(registration, context)
            if (refusal := self._rules.refusal(joining)) is not None:
                raise refusal
            if call is not None:
                call.credential = self._rules.proof(joining)
        set_removed(worker, self._placements.removed(registration.fetched))
        self._check_vacant(worker)
        if (other := self._connections.of_worker(worker.id)) is not None:
            _log.warning("worker %s registered again: closing its old connection", worker.id)
            other.close(Unavailable(f"another agent has registered as {worker.id!r}"))
            self._unregister(other)
        self._connections.register(connection, worker, joining)
        self._engines.offer(connection, worker, list(worker.offered.values()))
        registered = hub_pb2.Registered(session=connection.id)
        registered.MergeFrom(self._registered)
        connection.control.put(hub_pb2.GatewayControl(registered=registered))
        self._placements.send(connection)
        if call is not None:
            call.end()
        _log.info(
            "worker %s of class %s registered with %s, agent %s",
            worker.id,
            worker.worker_class,
            counted(len(worker.engines), "engine"),
            worker.agent_version,
        )

    def _check_vacant(self, worker: ConnectedWorker) -> None:
        """Check that no other process is connected under a worker's id."""
        connection = self._connections.of_worker(worker.id)
        other = None if connection is None else connection.worker
        if other is not None and other.instance not in ("", worker.instance):
            raise Conflict(
                f"another agent is connected as {worker.id!r}: start one of them with another "
                "--worker-id"
            )

    def set_rules(self, rows: tuple[AllowedWorkers, ...] | None) -> None:
        """Set the access table's rows for workers, and apply them to the connected ones."""
        self._rules.set_rows(rows)
        for connection, worker in self._connections.registered():
            if connection.joining is None:
                continue
            if (refusal := self._rules.refusal(connection.joining)) is not None:
                connection.close(refusal)  # which refuses it, with the reason
                self._unregister(connection)
                continue
            self._engines.offer(connection, worker, list(worker.offered.values()))
            self._placements.send(connection)

    def _unregister(self, connection: AgentConnection) -> None:
        worker = self._connections.unregister(connection)
        if worker is not None:
            self._reports.worker_left(worker)

    # --- heartbeats -------------------------------------------------------------------------

    async def _monitor_heartbeats(self) -> None:
        monitor = HeartbeatMonitor(self._registered.heartbeat_s, self._clock.now())
        while True:
            await asyncio.sleep(monitor.interval_s)
            lost = monitor.lost(self._connections.registered(), self._clock.now())
            for connection, _, reason in lost:
                _log.warning("%s: it is lost", reason)
                connection.close(Unavailable(reason))
                self._unregister(connection)


def _check_registered(connection: AgentConnection) -> None:
    if connection.worker is None:
        connection.close(InvalidInput(f"no `register` within {REGISTER_WITHIN_S:g} s"))


def set_removed(worker: ConnectedWorker, engines: Collection[EngineName]) -> None:
    """Set the engines that a worker is about to remove."""
    for name in engines:
        removed = replace(worker.engines[name], fault=REMOVED, pending=False, too_large=False)
        worker.engines[name] = worker.offered[name] = removed
    worker.sessions = {each for each in worker.sessions if each.engine not in engines}


def worker_from_registration(
    registration: Registration, context: ServerCall | None, now: float
) -> ConnectedWorker:
    """Return the worker of a registration; it has no work stream yet."""
    engines, sessions = dict(registration.engines), set(registration.sessions)
    for session in registration.sessions:
        if lacks_variant(engines[session.engine], session):
            where = f"worker {registration.worker_id!r}"
            _log.warning("%s: a loaded session is ignored: %s", where, lacking_text(session))
            sessions.discard(session)
    orders: SendQueue[Order] = SendQueue(0)
    orders.close()
    alike = {name: getattr(registration, name) for name in _ALIKE}
    return ConnectedWorker(
        id=registration.worker_id,
        orders=orders,
        last_seen_at=now,
        local=context is None,
        power=WorkerPower(mode=registration.power_mode, meter=registration.meter),
        offered=engines,
        engines=engines.copy(),
        sessions=sessions,
        peer_address=_peer_address(registration.peer_port, context),
        **alike,
    )


def joining_worker(registration: Registration, context: ServerCall) -> JoiningWorker:
    peer = context.peer
    token = registration.token
    if token and not (peer.is_encrypted or peer.is_local):
        raise Unauthenticated(
            "a worker's token is only accepted over TLS or loopback: give the agent --tls-ca"
        )
    certificate = peer_certificate(peer.certificate)
    return JoiningWorker(
        id=registration.worker_id,
        worker_class=registration.worker_class,
        certificate_names=certificate.alternative_names if certificate else frozenset(),
        token_sha256=hashlib.sha256(token.encode()).hexdigest() if token else "",
    )


def _peer_address(port: int, context: ServerCall | None) -> str:
    """Return where agents pull tensors from one that registers; empty if they cannot.

    The host is that from which it connects. One on this machine has the address of this gateway,
    which each agent knows as its own.
    """
    if not port:
        return ""
    peer = None if context is None else context.peer
    host = "" if peer is None or peer.is_local else peer.host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
