"""What ties the agent to its gateway: one registration, and the two streams that it lasts for.

Control is never behind a tensor, and carries the signs of life; work carries orders and reports.
Whatever ends either stream ends both; the gateway then gives the outstanding work to others, so it
is stopped and forgotten here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol import converters, rpc
from synergai.protocol.hub import GATEWAY_LOST_AFTER
from synergai.v1 import hub_pb2
from worker_agent.hub_client.assignments import Assignments
from worker_agent.hub_client.send_queue import MergingSendQueue
from worker_agent.hub_client.work_channel import GrpcWorkChannel, open_socket_channel, read, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from synergai.domain import Configuration, Session
    from worker_agent.hub_client.work_channel import WorkChannel
    from worker_agent.runner import Runner

_REGISTER_TIMEOUT_S: Final = 10.0
_FAREWELL_S: Final = 2.0
_LINE_TIMEOUT_S: Final = 1.0
"""How long connecting a work socket may take; no heartbeats are sent meanwhile."""

_log = logging.getLogger(__name__)


class ControlHandler(Protocol):
    """What the connection tells the gateway of, and carries out for it."""

    def register(self) -> hub_pb2.Register:
        """How this worker introduces itself, as of now."""

    def heartbeat(self) -> hub_pb2.Heartbeat:
        """How it is, as of now."""

    def load(self, session: Session) -> None:
        """Bring the session into memory."""

    def unload(self, session: Session) -> None:
        """Let the session go."""


class Registration:
    """The two streams of one registration.

    Args:
        channel: to the gateway's hub.
        worker: whom it speaks for.
        runner: runs what the gateway assigns.
        configurations: what this worker can be switched to.
        target: the gateway's hub, ``host:port``.
        max_message_bytes: largest message both ways.

    Attributes:
        control_outbox: what waits to be sent on the control stream.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        worker: ControlHandler,
        runner: Runner,
        configurations: Sequence[Configuration],
        target: str,
        max_message_bytes: int,
    ) -> None:
        self._channel = channel
        self._worker = worker
        self._host = target.rpartition(":")[0].strip("[]")
        self._max_message_bytes = max_message_bytes
        control: Any = channel.stream_stream(
            "/synergai.v1.Hub/Control",
            response_deserializer=rpc.deserializer(hub_pb2.GatewayControl),
        )
        self._control = control()
        self._work: WorkChannel | None = None
        self._registered: hub_pb2.Registered
        self._sequence = 0
        self._acknowledged = 0
        self.control_queue = MergingSendQueue(merge=False)
        self._work_queue = MergingSendQueue(merge=True)
        self._assignments = Assignments(runner, self._work_queue, configurations)

    async def register(self) -> None:
        """Introduce the worker on the control stream.

        Raises:
            SynergaiError: the gateway is not there, or refuses.
        """
        hello = hub_pb2.AgentControl(register=self._worker.register())
        try:
            async with asyncio.timeout(_REGISTER_TIMEOUT_S):
                await write(self._control, hello.SerializeToString())
                answer = await read(self._control)
        except TimeoutError:
            raise Unavailable("it does not answer the registration") from None
        if answer.WhichOneof("message") != "registered":
            raise InvalidInput("it does not speak this agent's protocol")
        self._registered = answer.registered

    async def serve(self) -> NoReturn:
        """Open the work stream, and work until the line breaks.

        Raises:
            SynergaiError: always, in the end; it says how the line broke.
        """
        work = self._work = await self._open_work()
        parts = (
            self._control_orders(),
            work.receive(),
            self._heartbeats(),
            self.control_queue.send_all(lambda data: write(self._control, data)),
            self._work_queue.send_all(work.write),
        )
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
        raise Unavailable("it ended the connection")

    async def _open_work(self) -> WorkChannel:
        """A work socket, if the gateway has one that can be reached, or else a call."""
        registered, take = self._registered, self._assignments.take
        if registered.work_port:
            line = await open_socket_channel(
                self._host,
                registered.work_port,
                registered.session,
                take,
                max_message_bytes=self._max_message_bytes,
                timeout_s=min(registered.heartbeat_s, _LINE_TIMEOUT_S),
            )
            if line is not None:
                return line
        return GrpcWorkChannel(self._channel, registered.session, take)

    async def flush(self) -> None:
        """Return once the gateway has what there is to report; bounded."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._work_queue.wait_empty()
                await self.control_queue.wait_empty()
                if self._work is not None:
                    await self._work.finish()
        except TimeoutError:
            _log.warning("the gateway did not take the last reports in time")

    def close(self) -> None:
        """End both streams, and what was assigned on them."""
        self._assignments.abandon()
        self._control.cancel()
        if self._work is not None:
            self._work.close()

    async def _control_orders(self) -> None:
        while True:
            order = await read(self._control)
            match order.WhichOneof("message"):
                case "heartbeat_ack":
                    self._acknowledged = order.heartbeat_ack.sequence
                case "load":
                    self._worker.load(converters.session_from_proto(order.load.session))
                case "unload":
                    self._worker.unload(converters.session_from_proto(order.unload.session))

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._registered.heartbeat_s)
            if self._sequence - self._acknowledged >= GATEWAY_LOST_AFTER:
                raise Unavailable(f"it has left {GATEWAY_LOST_AFTER} heartbeats unanswered")
            self._sequence += 1
            beat = self._worker.heartbeat()
            beat.sequence = self._sequence
            self.control_queue.put(hub_pb2.AgentControl(heartbeat=beat).SerializeToString())
