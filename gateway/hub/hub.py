"""The agents' side of the gateway: registration, signs of life, and what they are told of.

An agent dials in and keeps two streams: control, which is served here, and work (see
``gateway.hub.work_streams``). It becomes a worker of the fleet when both are open, and stops
being one when either ends. What it sends is checked; an agent that breaks the protocol loses its
connection, and what it had is run elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import grpc

from gateway.fleet.agent_validation import ProtocolViolation, checked_seconds, shown
from gateway.hub.heartbeats import SignsOfLife
from gateway.hub.registration import worker_of
from synergai.domain import validate_name
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.protocol import rpc
from synergai.protocol.converters import engine_from_proto, session_from_proto
from synergai.protocol.work_messages import decode_reports
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from gateway.clock import Clock
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.connections import AgentLink, Links
    from gateway.hub.model_control import ModelControl
    from gateway.hub.work_streams import WorkStreams
    from synergai.domain import Engine, EngineName, WorkerId
    from synergai.protocol.rpc import Context

_log = logging.getLogger(__name__)

REGISTER_WITHIN_S: Final = 10.0


class Hub:
    """Serves ``synergai.v1.Hub``.

    Args:
        links: whom the agents that register are written down in.
        work: serves their work streams.
        dispatcher: is told what becomes of workers.
        catalogue: is told what engines they have.
        model_control: is told which of them are resident.
        clock: what signs of life are measured by.
        remember: called with the engines of every new worker.
        heartbeat_s: how often agents are to give a sign of life.

    Attributes:
        work_port: where work sockets are served, to be told to agents; 0 if nowhere.
    """

    def __init__(
        self,
        links: Links,
        work: WorkStreams,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        model_control: ModelControl,
        clock: Clock,
        *,
        remember: Callable[[frozenset[EngineName]], object],
        heartbeat_s: float,
    ) -> None:
        self._links = links
        self._work = work
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._model_control = model_control
        self._clock = clock
        self._remember = remember
        self._heartbeat_s = heartbeat_s
        self.work_port = 0
        self._watch = asyncio.create_task(self._watch_heartbeats())

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's methods, for a server."""
        return grpc.method_handlers_generic_handler(
            "synergai.v1.Hub",
            {
                "Control": rpc.stream(self.control, hub_pb2.AgentControl),
                "Work": rpc.stream_by(self._work.serve_call, decode_reports, hub_pb2.WorkReports),
            },
        )

    async def close(self) -> None:
        """End all connections."""
        self._watch.cancel()
        self._links.close(Unavailable("the gateway is stopping"))
        await asyncio.wait([self._watch])
        await self._work.close()

    # --- control ------------------------------------------------------------------------------

    async def control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], _context: Context
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        """Serve an agent's control stream."""
        link = self._links.open()
        patience = asyncio.get_running_loop().call_later(
            REGISTER_WITHIN_S, self._check_registered, link
        )
        reader = asyncio.create_task(self._read_control(link, requests))
        reader.add_done_callback(link.control.follow)
        try:
            while messages := await link.control.take():
                for message in messages:
                    yield message
        except SynergaiError as error:
            self._links.refuse(link, error)
            raise
        finally:
            patience.cancel()
            reader.cancel()
            self._links.ended(link)
            self._forget(link)
            await asyncio.wait([reader])

    async def _read_control(
        self, link: AgentLink, requests: AsyncIterator[hub_pb2.AgentControl]
    ) -> None:
        async for message in requests:
            kind = message.WhichOneof("message")
            worker = link.worker
            if worker is None:
                if kind != "register":
                    raise ProtocolViolation("the first message must be `register`")
                self._register(link, message.register)
                continue
            worker.heard_at = self._clock.now()
            match kind:
                case "heartbeat":
                    if message.heartbeat.HasField("draw"):
                        worker.power.metered(message.heartbeat.draw, worker.heard_at)
                    ack = hub_pb2.HeartbeatAck(sequence=message.heartbeat.sequence)
                    link.control.put(hub_pb2.GatewayControl(heartbeat_ack=ack))
                    self._model_control.remind(worker)
                case "session_changed":
                    self._session_changed(worker, message.session_changed)
                case "engine_changed":
                    engine = engine_from_proto(message.engine_changed.engine)
                    self._remember(frozenset({engine.name}))
                    self._believe(self._catalogue.put(worker.id, engine))
                case "power_changed":
                    self._power_changed(worker, message.power_changed)
                case "draining":
                    _log.info("worker %s is draining", worker.id)
                    self._dispatcher.draining(worker)
                case "register":
                    raise ProtocolViolation("this stream has registered already")
                case _:
                    pass  # a later version's message; the protocol number guards what matters

    def _register(self, link: AgentLink, message: hub_pb2.Register) -> None:
        worker = worker_of(message, self._clock.now())
        if (other := self._links.of_worker(worker.id)) is not None:
            _log.warning("worker %s registered again: its earlier connection ends", worker.id)
            other.close(Unavailable(f"another agent has registered as {worker.id!r}"))
            self._forget(other)
        self._links.register(link, worker)
        self._remember(frozenset(worker.engines))
        for engine in list(worker.engines.values()):
            self._believe(self._catalogue.put(worker.id, engine))
        registered = hub_pb2.Registered(
            session=link.session, heartbeat_s=self._heartbeat_s, work_port=self.work_port
        )
        link.control.put(hub_pb2.GatewayControl(registered=registered))
        _log.info(
            "worker %s of class %s registered with %d engines, agent %s",
            worker.id,
            worker.worker_class,
            len(worker.engines),
            worker.agent_version,
        )

    def _believe(self, engines: dict[WorkerId, Engine]) -> None:
        """Take an engine on each worker for what the catalogue does."""
        for worker_id, engine in engines.items():
            link = self._links.of_worker(worker_id)
            if link is None or (worker := link.worker) is None:
                continue
            if worker.engines.get(engine.name) == engine:
                continue
            if engine.fault:
                _log.warning("worker %s: engine %s: %s", worker_id, engine.name, engine.fault)
            worker.engines[engine.name] = engine
            self._dispatcher.engines_changed(worker)

    def _session_changed(self, worker: ConnectedWorker, message: hub_pb2.SessionChanged) -> None:
        session = session_from_proto(message.session)
        if session.engine not in worker.engines:
            raise ProtocolViolation(f"worker {worker.id!r} has no engine {session.engine!r}")
        if message.resident:
            setup_s = sum(
                checked_seconds(seconds, f"loading {session.engine!r}")
                for seconds in (
                    message.backend_start_s,
                    message.model_load_s,
                    message.data_preparation_s,
                )
            )
            self._dispatcher.session_loaded(worker, session, setup_s)
            self._model_control.session_changed(worker, session, resident=True)
            return
        fault = shown(message.fault)
        if fault:
            _log.warning("worker %s: %s not loaded: %s", worker.id, session.engine, fault)
        self._dispatcher.session_dropped(worker, session)
        self._model_control.session_changed(worker, session, resident=False, fault=fault)

    def _power_changed(self, worker: ConnectedWorker, message: hub_pb2.PowerChanged) -> None:
        switch_s = checked_seconds(message.switch_s, "switching")
        worker.power.mode = validate_name(message.mode, "power mode") if message.mode else ""
        if switch_s > 0:
            worker.power.switch_s = switch_s
        self._dispatcher.mode_changed(worker, switch_s)

    def _check_registered(self, link: AgentLink) -> None:
        if link.worker is None:
            link.close(InvalidInput(f"no `register` came within {REGISTER_WITHIN_S:g} s"))

    def _forget(self, link: AgentLink) -> None:
        """Take an agent whose control stream has ended out of everything."""
        worker = self._links.forget(link)
        if worker is None:
            return
        for engines in self._catalogue.drop(worker.id):
            self._believe(engines)
        worker.orders.close(Unavailable("the control stream has ended"))
        self._dispatcher.left(worker)
        self._model_control.left(worker)
        _log.info("worker %s has left", worker.id)

    # --- signs of life ------------------------------------------------------------------------

    async def _watch_heartbeats(self) -> None:
        """End the connections of agents that have fallen silent."""
        signs = SignsOfLife(self._heartbeat_s, self._clock.now())
        while True:
            await asyncio.sleep(signs.look_every_s)
            for link, worker in signs.lost(self._links.registered(), self._clock.now()):
                silence = f"nothing was heard of worker {worker.id!r} for {signs.patience_s:g} s"
                _log.warning("%s: it counts as lost", silence)
                link.close(Unavailable(silence))
                self._forget(link)
