"""The agent's client of the gateway's hub, which reconnects with exponential backoff.

The control stream carries heartbeats and is never blocked behind a tensor; the work stream carries
orders and reports. If either stream ends, both do: the gateway reassigns the outstanding work, so
the agent stops and discards it. Engine hosts stay resident while the gateway is unreachable.

The link of an agent that runs in its gateway's process is a pair of method calls; see
``gateway.serve.server``. All others connect over the network; see
``worker_agent.hub_client.remote``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import grpc

from synergai.domain import EngineName
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.runtime.clock import Backoff
from synergai.runtime.tasks import TaskBag
from synergai.v1 import hub_pb2
from synergai.wire import converters, rpc
from synergai.wire.limits import GATEWAY_LOST_AFTER, GATEWAY_SILENT_AFTER
from synergai.wire.status import error_from_call
from synergai.wire.work_messages import Orders, Reports
from worker_agent.exchange import Exchange, Pulls
from worker_agent.hub_client.assignments import Assignments, WorkStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from synergai.domain import Configuration, Engine, Session, UnusableSession
    from synergai.v1 import common_pb2
    from synergai.wire.work_transport import WorkTransport
    from worker_agent.hosts.sessions import SessionChange
    from worker_agent.placements.reconciler import Fetch
    from worker_agent.placements.sending import ReadContents, Send
    from worker_agent.runner import Runner

_REGISTER_TIMEOUT_S: Final = 10.0
_REGISTER_ELSEWHERE_S: Final = 3.0
"""Time for a registration if there is another gateway to try: this one may hang."""
_FLUSH_TIMEOUT_S: Final = 2.0
_NO_REPORTS: Final = Reports()
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=10.0)
_BACKOFF_OF_SEVERAL: Final = Backoff(initial_s=0.25, max_s=2.0)
"""For several gateways, each of which is tried less often."""
_BACKOFF_RESET_AFTER_S: Final = 5.0
"""A connection that lasts this long resets the backoff."""

_log = logging.getLogger(__name__)


class HubConnection(Protocol):
    """An open connection: the control stream, and the work stream after the registration."""

    def authenticate(self, register: hub_pb2.Register) -> None:
        """Add what proves the worker's identity to its registration."""

    async def read(self) -> hub_pb2.GatewayControl:
        """Return the next control message."""

    async def write(self, data: bytes) -> None:
        """Send a serialised ``AgentControl``; block forever once the stream has ended."""

    async def open_work(
        self, registered: hub_pb2.Registered, on_orders: Callable[[Orders], None]
    ) -> WorkTransport:
        """Open the work stream; a `SynergaiError` raised by `on_orders` closes it."""

    def fetch(self, session: str, sha256: str, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield the content of the gateway's store with this digest, from an offset to its end."""

    async def send(self, head: hub_pb2.EngineChunk, read: ReadContents) -> None:
        """Send an engine to the gateway's store: a first message, and what the store lacks."""

    def close(self) -> None:
        """Close the control stream immediately."""


class HubLink(Protocol):
    """Way to reach the hub of a gateway, or of the leader among several.

    Attributes:
        target: address of the current gateway.
    """

    target: str
    gateways: int

    def connect(self) -> AbstractAsyncContextManager[HubConnection]:
        """Return a context manager that opens a connection, or raises why not, and closes it."""

    async def find_other(self) -> str:
        """Return the address of another gateway that agents can connect to, and try it next."""


class ControlHandler(Protocol):
    """Describes the worker to the gateway and handles its control messages."""

    exchange: Exchange
    runner: Runner
    configurations: tuple[Configuration, ...]

    async def register_message(self) -> hub_pb2.Register:
        """Return the current description of this worker."""

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        """Return the current memory use and power draw; the caller sets the sequence number."""

    def load_session(self, session: Session, *, preload: bool, limit_s: float) -> None:
        """Load `session`; the result is sent as a ``SessionChanged``."""

    def unload_session(self, session: Session) -> None:
        """Unload `session` if it is idle."""

    def place_engines(self, placements: Sequence[hub_pb2.Placement], fetch: Fetch) -> None:
        """Fetch the versions placed on this worker, and remove others."""

    def send_engine(self, engine: EngineName, send: Send) -> None:
        """Send an engine of the user's model directory to the gateway."""


class Registration:
    """The control and work streams of one registration."""

    def __init__(
        self,
        hub: HubLink,
        connection: HubConnection,
        worker: ControlHandler,
    ) -> None:
        self._hub = hub
        self._connection = connection
        self._worker = worker
        self._work = WorkStream()
        self._registered: hub_pb2.Registered
        self._sequence = 0
        self._acknowledged = 0
        self._control: asyncio.Queue[bytes] = asyncio.Queue()
        host = hub.target.rpartition(":")[0]
        held, peers = worker.exchange.held, worker.exchange.peers
        self._assignments = Assignments(
            worker.runner,
            self._work.send,
            worker.configurations,
            held,
            Pulls(held, peers, host, self._work.send),
        )

    async def register(self) -> None:
        hello = hub_pb2.AgentControl(register=await self._worker.register_message())
        self._connection.authenticate(hello.register)
        limit_s = _REGISTER_TIMEOUT_S if self._hub.gateways == 1 else _REGISTER_ELSEWHERE_S
        try:
            async with asyncio.timeout(limit_s):
                await self._connection.write(hello.SerializeToString())
                answer = await self._connection.read()
        except TimeoutError:
            raise Unavailable(f"no reply to the registration within {limit_s:g} s") from None
        if answer.WhichOneof("message") != "registered":
            raise InvalidInput(
                "unexpected reply to the registration; do gateway and agent have the same version?"
            )
        self._registered = answer.registered

    async def serve(self) -> NoReturn:
        """Serve the control stream, and open and serve the work stream, until one ends."""
        await _run_until_one_ends(
            self._receive_control(),
            self._send_heartbeats(),
            self._send_control(),
            self._work.serve(
                self._connection.open_work(self._registered, self._assignments.handle_orders)
            ),
        )

    @property
    def gets_work(self) -> bool:
        return self._work.is_open

    async def flush(self) -> None:
        """Wait, with a timeout, until the gateway has received all reports."""
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._control.join()
                await self._work.flush()
        except TimeoutError:
            _log.warning(
                "the gateway did not receive the last reports within %g s", _FLUSH_TIMEOUT_S
            )

    def close(self) -> None:
        """Close both streams and abandon their assignments."""
        self._assignments.abandon_all()
        self._connection.close()
        self._work.close()

    def send(self, message: hub_pb2.AgentControl) -> None:
        self._control.put_nowait(message.SerializeToString())

    async def _send_control(self) -> None:
        while True:
            await self._connection.write(await self._control.get())
            self._control.task_done()

    async def _receive_control(self) -> None:
        while True:
            message = await self._connection.read()
            match message.WhichOneof("message"):
                case "heartbeat_ack":
                    self._acknowledged = message.heartbeat_ack.sequence
                case "load":
                    session = converters.session_from_proto(message.load.session)
                    limit_s = message.load.limit_s or math.inf
                    preload = message.load.preload
                    self._worker.load_session(session, preload=preload, limit_s=limit_s)
                case "placements":
                    fetch = partial(self._connection.fetch, self._registered.session)
                    self._worker.place_engines(message.placements.placements, fetch)
                case "send":
                    self._worker.send_engine(EngineName(message.send.engine), self._send_engine)
                case "unload":
                    self._worker.unload_session(
                        converters.session_from_proto(message.unload.session)
                    )

    async def _send_engine(self, head: hub_pb2.EngineChunk, read: ReadContents) -> None:
        head.session = self._registered.session
        await self._connection.send(head, read)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._registered.heartbeat_s)
            missed = self._sequence - self._acknowledged
            if missed >= GATEWAY_LOST_AFTER:
                raise Unavailable(f"{missed} heartbeats were not acknowledged")
            if missed >= GATEWAY_SILENT_AFTER and (other := await self._hub.find_other()):
                raise Unavailable(f"{missed} heartbeats were not acknowledged; {other} listens")
            self._sequence += 1
            heartbeat = self._worker.heartbeat_message()
            heartbeat.sequence = self._sequence
            if (sent := self._work.measure_link()) is not None:
                heartbeat.sent_bytes_per_s = sent.bytes_per_s
            heartbeat.received_bytes_per_s = self._work.received_bytes_per_s
            self.send(hub_pb2.AgentControl(heartbeat=heartbeat))
            # A gateway flooded with gRPC calls reads its control streams late, but not its sockets.
            self._work.send(_NO_REPORTS)


async def _run_until_one_ends(*coroutines: Coroutine[Any, Any, object]) -> NoReturn:
    """Run coroutines together until the first ends, cancel the others, and raise its error."""
    # Not a TaskGroup: cancelling one loop fails the others of its call, and on Python 3.11 a
    # TaskGroup raises such errors in place of its own cancellation.
    async with TaskBag() as tasks:
        started = [tasks.start_awaited(each) for each in coroutines]
        done, _ = await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    raise Unavailable("the gateway closed the connection")


class HubClient:
    """Keeps the agent registered with its gateway."""

    def __init__(self, hub: HubLink, *, backoff: Backoff | None = None) -> None:
        self._hub = hub
        self._registration: Registration | None = None
        several = hub.gateways > 1
        self._backoff = backoff or (_BACKOFF_OF_SEVERAL if several else _BACKOFF)
        self._delays = self._backoff.delays()

    @property
    def connected(self) -> bool:
        """Whether the worker is registered, and gets work."""
        return self._registration is not None and self._registration.gets_work

    async def run(self, worker: ControlHandler) -> NoReturn:
        """Register the worker, and again whenever the connection fails, until cancelled."""
        while True:
            try:
                await self._connect(worker)
            except Exception as failure:  # noqa: BLE001 - reconnect even after a bug of ours
                error = _to_synergai_error(failure, self._hub.target)
                pause = next(self._delays)
                _log.warning(
                    "not connected to the gateway at %s, retrying in %.1f s: %s",
                    self._hub.target,
                    pause,
                    error,
                )
                await asyncio.sleep(pause)

    def send_session_changed(self, change: SessionChange) -> None:
        """Send a change of session residency to the gateway, if connected."""
        message = hub_pb2.SessionChanged(
            session=converters.session_to_proto(change.session),
            resident=change.resident,
            fault=str(change.error or ""),
            bytes=change.size,
            no_room=change.no_room,
        )
        if change.ready is not None:
            message.backend_start_s = change.ready.backend_start_s
            message.model_load_s = change.ready.model_load_s
            message.data_preparation_s = change.ready.data_preparation_s
        self._send(hub_pb2.AgentControl(session_changed=message))

    def send_engine_changed(self, engine: Engine) -> None:
        """Send an engine's new description to the gateway, if connected."""
        message = hub_pb2.EngineChanged(engine=converters.engine_to_proto(engine))
        self._send(hub_pb2.AgentControl(engine_changed=message))

    def send_configurations_unusable(
        self, engine: EngineName, sessions: Iterable[UnusableSession]
    ) -> None:
        """Send all sessions of an engine that cannot be run here to the gateway, if connected."""
        message = hub_pb2.ConfigurationsUnusable(
            engine=engine, sessions=map(converters.unusable_session_to_proto, sessions)
        )
        self._send(hub_pb2.AgentControl(configurations_unusable=message))

    def send_power_changed(self, mode: str, switch_s: float) -> None:
        """Send the active power mode and the switch duration to the gateway, if connected."""
        message = hub_pb2.PowerChanged(mode=mode, switch_s=switch_s)
        self._send(hub_pb2.AgentControl(power_changed=message))

    def send_placed(self, placed: common_pb2.Placed) -> None:
        """Send what became of a placed version to the gateway, if connected."""
        self._send(hub_pb2.AgentControl(placed=placed))

    def send_draining(self) -> None:
        """Tell the gateway, if connected, to assign no more work."""
        self._send(hub_pb2.AgentControl(draining=hub_pb2.Draining()))

    async def flush(self) -> None:
        """Wait until the gateway has received all reports; return at once if not connected."""
        if self._registration is not None:
            await self._registration.flush()

    def _send(self, message: hub_pb2.AgentControl) -> None:
        # If not connected, the next registration carries the current state.
        if self._registration is not None:
            self._registration.send(message)

    async def _connect(self, worker: ControlHandler) -> NoReturn:
        """Register and serve one connection; always ends with an exception."""
        async with self._hub.connect() as connection:
            registration = Registration(self._hub, connection, worker)
            loop = asyncio.get_running_loop()
            backoff_reset: asyncio.TimerHandle | None = None
            # Set before registering: a change during the registration follows it.
            self._registration = registration
            try:
                await registration.register()
                # Not immediately: two agents with the same id would keep replacing each other at
                # the shortest backoff.
                backoff_reset = loop.call_later(_BACKOFF_RESET_AFTER_S, self._reset_backoff)
                _log.info("registered with the gateway at %s", self._hub.target)
                await registration.serve()
            finally:
                if backoff_reset is not None:
                    backoff_reset.cancel()
                self._registration = None
                registration.close()

    def _reset_backoff(self) -> None:
        self._delays = self._backoff.delays()


def _to_synergai_error(failure: Exception, target: str) -> SynergaiError:
    match failure:
        case SynergaiError():
            return failure
        case grpc.aio.AioRpcError():
            return error_from_call(target, failure.code(), failure.details() or "")
        case _:
            return rpc.log_internal_error("the connection")
