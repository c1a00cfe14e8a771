"""The agents' side of the gateway: registration, signs of life, assignments and reports.

An agent dials in and keeps two streams: control, and work, which is a work line or else a call. It
becomes a worker of the fleet when both are open, and stops being one when either ends. What it
sends is checked; an agent that breaks the protocol loses its connection, and what it had is run
elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.message import DecodeError

from gateway.agents.registration import worker_of
from gateway.fleet.reports import ProtocolViolation, checked_seconds, shown
from gateway.fleet.worker import Halt, Run
from gateway.outbox import Outbox
from synergai import rpc
from synergai.domain import checked_name
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.v1 import hub_pb2
from synergai.wire import configuration_to_proto, engine_from_proto, session_from_proto
from synergai.work_stream import assignment_order, open_reports

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from gateway.agents.model_control import ModelControl
    from gateway.clock import Clock
    from gateway.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker, Order
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import Engine, EngineName, WorkerId
    from synergai.envelope import Buffer
    from synergai.rpc import Context
    from synergai.work_line import WorkLine
    from synergai.work_stream import Reports

_log = logging.getLogger(__name__)

SESSION_METADATA: Final = "synergai-session"
MISSED_HEARTBEATS: Final = 3
REGISTER_WITHIN_S: Final = 10.0
_CONTROL_LIMIT: Final = 1024
_ORDERS_LIMIT: Final = 4096
_GATHER_TURNS: Final = 32
"""A message costs far more than what is in it. To a worker that has something to do already,
orders are therefore sent only once so many turns of the loop in a row have brought no others.
An idle turn takes about a microsecond, so that this costs little but under load, when a turn
brings orders, and then saves a quarter of the CPU time of a request."""
_GATHER_S: Final = 0.004
"""How long orders may be kept back by that."""


@dataclass(slots=True, eq=False)
class AgentLink:
    """An agent's connection.

    Attributes:
        control: what waits to be sent on the control stream.
        worker: who it is; None until it has registered.
        session: what its work stream has to show.
    """

    control: Outbox[hub_pb2.GatewayControl]
    worker: ConnectedWorker | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(16))

    def close(self, error: SynergaiError | None = None) -> None:
        """End both streams."""
        self.control.close(error)
        if self.worker is not None:
            self.worker.orders.close(error)


class Hub:
    """Serves ``synergai.v1.Hub``.

    Args:
        dispatcher: is told what becomes of workers and of their assignments.
        catalogue: is told what engines they have.
        model_control: is told which of them are resident.
        remember: called with the engines of every new worker.
        metrics: where refused agents are counted.
        clock: what signs of life are measured by.
        heartbeat_s: how often agents are to give one.
        max_message_bytes: the largest message that an agent may send or is sent.

    Attributes:
        work_port: where work lines are served, to be told to agents; 0 if nowhere.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        model_control: ModelControl,
        metrics: Metrics,
        clock: Clock,
        *,
        remember: Callable[[frozenset[EngineName]], object],
        heartbeat_s: float,
        max_message_bytes: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._model_control = model_control
        self._metrics = metrics
        self._clock = clock
        self._remember = remember
        self._heartbeat_s = heartbeat_s
        self._max_message_bytes = max_message_bytes
        self._batch_bytes = max_message_bytes // 2
        self.work_port = 0
        self._links: dict[WorkerId, AgentLink] = {}
        self._sessions: dict[str, AgentLink] = {}
        self._streams: set[AgentLink] = set()
        self._senders: set[asyncio.Task[None]] = set()
        self._watch = asyncio.create_task(self._watch_heartbeats())

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's methods, for a server."""
        return grpc.method_handlers_generic_handler(
            "synergai.v1.Hub",
            {
                "Control": rpc.stream(self.control, hub_pb2.AgentControl),
                "Work": rpc.stream_by(self.work, open_reports, hub_pb2.WorkReports),
            },
        )

    def workers(self) -> Iterator[ConnectedWorker]:
        """Every worker that has registered."""
        return (link.worker for link in self._links.values() if link.worker is not None)

    async def close(self) -> None:
        """End all connections."""
        self._watch.cancel()
        for link in list(self._streams):
            link.close(Unavailable("the gateway is stopping"))
        await asyncio.wait([self._watch, *self._senders])

    # --- control ------------------------------------------------------------------------------

    async def control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], _context: Context
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        """Serve an agent's control stream."""
        link = AgentLink(Outbox(_CONTROL_LIMIT))
        self._streams.add(link)
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
            self._refuse(link, error)
            raise
        finally:
            patience.cancel()
            reader.cancel()
            self._streams.discard(link)
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
        if (other := self._links.get(worker.id)) is not None:
            _log.warning("worker %s registered again: its earlier connection ends", worker.id)
            other.close(Unavailable(f"another agent has registered as {worker.id!r}"))
            self._forget(other)
        link.worker = worker
        worker.control = link.control
        self._links[worker.id] = link
        self._sessions[link.session] = link
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
            worker = self._links[worker_id].worker
            if worker is None or worker.engines.get(engine.name) == engine:
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
        worker.power.mode = checked_name(message.mode, "power mode") if message.mode else ""
        if switch_s > 0:
            worker.power.switch_s = switch_s
        self._dispatcher.mode_changed(worker, switch_s)

    def _check_registered(self, link: AgentLink) -> None:
        if link.worker is None:
            link.close(InvalidInput(f"no `register` came within {REGISTER_WITHIN_S:g} s"))

    def _forget(self, link: AgentLink) -> None:
        """Take an agent whose control stream has ended out of everything."""
        worker = link.worker
        if worker is None or self._sessions.pop(link.session, None) is None:
            return
        del self._links[worker.id]
        for engines in self._catalogue.drop(worker.id):
            self._believe(engines)
        worker.orders.close(Unavailable("the control stream has ended"))
        self._dispatcher.left(worker)
        self._model_control.left(worker)
        _log.info("worker %s has left", worker.id)

    def _refuse(self, link: AgentLink, error: SynergaiError) -> None:
        """If the agent is at fault, end its connection, and say once, under an id, why."""
        if isinstance(error, Unavailable):
            return
        self._metrics.refused_agents.inc()
        name = link.worker.id if link.worker is not None else "not registered"
        _log.warning("fault %s: agent %s refused: %s", secrets.token_hex(4), name, error)
        link.close(error)

    # --- work ---------------------------------------------------------------------------------

    async def work(
        self, requests: AsyncIterator[Reports], context: Context
    ) -> AsyncGenerator[bytes, None]:
        """Serve an agent's work stream on a call."""
        metadata = dict(context.invocation_metadata() or ())
        link, worker, orders = self._take_over(str(metadata.get(SESSION_METADATA, "")))
        reader = asyncio.create_task(self._read_reports(worker, requests))
        reader.add_done_callback(orders.follow)
        self._dispatcher.joined(worker)
        try:
            while batch := await orders.take():
                if len(worker.outstanding) > 1:
                    batch += await orders.gather(_GATHER_TURNS, _GATHER_S)
                for parts in self._pack(batch):
                    yield b"".join(parts)
        except SynergaiError as error:
            self._refuse(link, error)
            raise
        finally:
            reader.cancel()
            self._work_ended(worker, orders)
            await asyncio.wait([reader])

    def open_line(self, session: str, line: WorkLine) -> None:
        """Serve an agent's work stream on a work line, which has shown this session.

        Raises:
            Unavailable: there is no such session.
        """
        link, worker, orders = self._take_over(session)
        line.take = partial(self._take_message, worker)
        line.max_bytes = self._max_message_bytes
        line.ended.add_done_callback(orders.follow)
        orders.when_broken = line.close
        sender = asyncio.create_task(self._send_orders(link, worker, orders, line))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)
        self._dispatcher.joined(worker)

    async def _send_orders(
        self, link: AgentLink, worker: ConnectedWorker, orders: Outbox[Order], line: WorkLine
    ) -> None:
        try:
            while batch := await orders.take():
                batch += await self._more(worker, orders, len(batch))
                for parts in self._pack(batch):
                    line.send(parts)
                await line.drain()
        except SynergaiError as error:
            self._refuse(link, error)
        finally:
            line.close()
            self._work_ended(worker, orders)

    @staticmethod
    async def _more(worker: ConnectedWorker, orders: Outbox[Order], held: int) -> list[Order]:
        """What had better go to a busy worker in one message with the orders that are held.

        A work line takes a message at once, so that nothing gathers by itself; to wake agent and
        engine host for every single query costs them more than the query. Orders to a worker that
        has something to do therefore wait until half of that is done. A slow worker gets them
        earlier, while it still computes.
        """
        has = len(worker.outstanding) - held
        if has < 1:
            return []
        return await orders.gather_until(
            lambda more: 2 * (len(worker.outstanding) - held - more) <= has, _GATHER_S
        )

    def _take_over(self, session: str) -> tuple[AgentLink, ConnectedWorker, Outbox[Order]]:
        """Who a work stream with this session is of, and what it has to send from now on."""
        link = self._sessions.get(session)
        if link is None or (worker := link.worker) is None:
            raise Unavailable("no such session: register on a control stream first")
        worker.orders.close(Unavailable("another work stream has taken over"))
        self._dispatcher.left(worker)
        worker.orders = Outbox(_ORDERS_LIMIT)
        return link, worker, worker.orders

    def _work_ended(self, worker: ConnectedWorker, orders: Outbox[Order]) -> None:
        orders.close()
        if worker.orders is orders:
            self._dispatcher.left(worker)

    async def _read_reports(
        self, worker: ConnectedWorker, requests: AsyncIterator[Reports]
    ) -> None:
        async for reports in requests:
            self._take_reports(worker, reports)

    def _take_message(self, worker: ConnectedWorker, data: Buffer) -> None:
        try:
            reports = open_reports(data)
        except DecodeError:
            raise ProtocolViolation("the message is not a valid synergai.v1.WorkReports") from None
        self._take_reports(worker, reports)

    def _take_reports(self, worker: ConnectedWorker, reports: Reports) -> None:
        worker.heard_at = self._clock.now()
        for started in reports.started:
            self._dispatcher.started(worker, started)
        for progress, responses in reports.progress:
            self._dispatcher.progress(worker, progress, responses)
        for ended, responses in reports.ended:
            self._dispatcher.ended(worker, ended, responses)
        worker.orders.nudge()

    def _pack(self, batch: list[Order]) -> Iterator[list[Buffer]]:
        """As few messages, each in parts, as the bound on their size allows, in order."""
        parts: list[Buffer] = []
        size, now = 0, self._clock.now()
        for order in batch:
            added = _serialised(order, now)
            added_bytes = sum(map(len, added))
            if size and size + added_bytes > self._batch_bytes:
                yield parts
                parts, size = [], 0
            parts += added
            size += added_bytes
        yield parts

    # --- signs of life ------------------------------------------------------------------------

    async def _watch_heartbeats(self) -> None:
        """End the connections of agents that have fallen silent."""
        patience_s = MISSED_HEARTBEATS * self._heartbeat_s
        while True:
            slept_at = self._clock.now()
            await asyncio.sleep(self._heartbeat_s / 2)
            now = self._clock.now()
            if now - slept_at > self._heartbeat_s:
                continue  # we were held up ourselves: let what has come in be read first
            for link in list(self._links.values()):
                worker = link.worker
                if worker is not None and now - worker.heard_at > patience_s:
                    silence = f"nothing was heard of worker {worker.id!r} for {patience_s:g} s"
                    _log.warning("%s: it counts as lost", silence)
                    link.close(Unavailable(silence))
                    self._forget(link)


def _serialised(order: Order, now: float) -> list[Buffer]:
    """The parts of a serialised ``WorkOrders`` of one order; such messages merge by following."""
    match order:
        case Run(assignment, requests):
            message = hub_pb2.Assignment(
                id=assignment.id,
                job_id=assignment.job_id,
                engine=assignment.engine,
                configuration=configuration_to_proto(assignment.configuration),
                first=assignment.first,
                count=assignment.count,
            )
            if assignment.batch_times is not None:
                message.batch_s.extend(assignment.batch_times.by_size)
                if assignment.compute_by < math.inf:
                    message.budget_s = assignment.compute_by - now
            return assignment_order(message, requests)
        case Halt(assignment_id):
            return [hub_pb2.WorkOrders(stops=[assignment_id]).SerializeToString()]
