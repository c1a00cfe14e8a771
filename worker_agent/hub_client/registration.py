"""One registration of the agent with its gateway, and the two streams that carry it.

The control stream carries heartbeats and is never blocked behind a tensor; the work stream carries
orders and reports. If either stream ends, both do: the gateway reassigns the outstanding work, so
the agent stops and discards it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.tasks import TaskBag
from synergai.v1 import hub_pb2
from synergai.wire import converters
from synergai.wire.hub import GATEWAY_LOST_AFTER, GATEWAY_SILENT_AFTER
from synergai.wire.work_messages import Reports
from worker_agent.exchange import Pulls
from worker_agent.hub_client.assignments import Assignments

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from synergai.domain import Configuration, Session
    from synergai.wire.work_transport import WorkTransport
    from worker_agent.exchange import Exchange
    from worker_agent.hub_client.link import HubConnection, HubLink
    from worker_agent.placements.reconciler import Fetch
    from worker_agent.runner import Runner

_REGISTER_TIMEOUT_S: Final = 10.0
_REGISTER_ELSEWHERE_S: Final = 3.0
"""Time for a registration if there is another gateway to try: this one may hang."""
_FLUSH_TIMEOUT_S: Final = 2.0
_NO_REPORTS: Final = Reports()

_log = logging.getLogger(__name__)


class ControlHandler(Protocol):
    """Describes the worker to the gateway and handles its control messages."""

    exchange: Exchange
    runner: Runner
    configurations: tuple[Configuration, ...]

    def register_message(self) -> hub_pb2.Register:
        """Return the current description of this worker."""

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        """Return the current memory use and power draw; the caller sets the sequence number."""

    def load_session(self, session: Session, *, preload: bool, limit_s: float) -> None:
        """Load `session`; the result is sent as a ``SessionChanged``."""

    def unload_session(self, session: Session) -> None:
        """Unload `session` if it is idle."""

    def place_engines(self, placements: Sequence[hub_pb2.Placement], fetch: Fetch) -> None:
        """Fetch the versions placed on this worker, and remove others."""


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
        self._work: WorkTransport | None = None
        self._registered: hub_pb2.Registered
        self._sequence = 0
        self._acknowledged = 0
        self._control: asyncio.Queue[bytes] = asyncio.Queue()
        host = hub.target.rpartition(":")[0]
        held, peers = worker.exchange.held, worker.exchange.peers
        self._assignments = Assignments(
            worker.runner,
            self._send_reports,
            worker.configurations,
            held,
            Pulls(held, peers, host, self._send_reports),
        )

    async def register(self) -> None:
        """Register the worker on the control stream."""
        hello = hub_pb2.AgentControl(register=self._worker.register_message())
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
            self._serve_work(),
        )

    @property
    def gets_work(self) -> bool:
        """Whether the work stream is open."""
        return self._work is not None and not self._work.closed.done()

    async def _serve_work(self) -> None:
        self._work = await self._connection.open_work(
            self._registered, self._assignments.handle_orders
        )
        await asyncio.shield(self._work.closed)

    def _send_reports(self, reports: Reports) -> None:
        if self._work is not None:
            self._work.send_message(reports)

    async def flush(self) -> None:
        """Wait, with a timeout, until the gateway has received all reports."""
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._control.join()
                if self._work is not None:
                    self._work.finish()
                    await asyncio.wait([self._work.closed])
        except TimeoutError:
            _log.warning(
                "the gateway did not receive the last reports within %g s", _FLUSH_TIMEOUT_S
            )

    def close(self) -> None:
        """Close both streams and abandon their assignments."""
        self._assignments.abandon_all()
        self._connection.close()
        if self._work is not None:
            self._work.close()

    def send(self, message: hub_pb2.AgentControl) -> None:
        """Send a message on the control stream."""
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
                case "unload":
                    self._worker.unload_session(
                        converters.session_from_proto(message.unload.session)
                    )

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
            if self._work is not None and (sent := self._work.measure_link()) is not None:
                heartbeat.sent_bytes_per_s = sent.bytes_per_s
            self.send(hub_pb2.AgentControl(heartbeat=heartbeat))
            # A gateway flooded with gRPC calls reads its control streams late, but not its sockets.
            self._send_reports(_NO_REPORTS)


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
