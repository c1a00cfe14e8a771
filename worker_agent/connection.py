"""The agent's line to its gateway: registered, kept alive, and dialled again when it breaks.

Two streams: control, which is never behind a tensor, and work. Whatever ends either ends both;
the gateway then gives the outstanding work to others, so it is stopped and forgotten here. Engine
hosts stay resident meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import grpc

from synergai import rpc, wire
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.status import error_from_rpc
from synergai.tls import open_channel
from synergai.v1 import hub_pb2
from worker_agent.assignments import Assignments
from worker_agent.outbox import Outbox
from worker_agent.work_channel import WorkCall, open_line, read, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Configuration, Engine, Session
    from worker_agent.hosts import SessionChange
    from worker_agent.runner import Runner
    from worker_agent.work_channel import WorkChannel

FIRST_BACKOFF_S: Final = 0.5
LONGEST_BACKOFF_S: Final = 10.0
SETTLED_AFTER_S: Final = 5.0
"""A connection that lasted so long was a good one: back-off begins anew after it."""
MISSED_HEARTBEATS: Final = 3
_REGISTER_TIMEOUT_S: Final = 10.0
_FAREWELL_S: Final = 2.0
_LINE_TIMEOUT_S: Final = 1.0
"""How long connecting a work line may take; no heartbeats are sent meanwhile."""

_log = logging.getLogger(__name__)


class Worker(Protocol):
    """What the connection tells the gateway of, and carries out for it."""

    def register(self) -> hub_pb2.Register:
        """How this worker introduces itself, as of now."""

    def heartbeat(self) -> hub_pb2.Heartbeat:
        """How it is, as of now."""

    def load(self, session: Session) -> None:
        """Bring the session into memory."""

    def unload(self, session: Session) -> None:
        """Let the session go."""


class Connection:
    """Keeps the agent connected.

    Args:
        target: the gateway's hub, ``host:port``.
        worker: whom it speaks for.
        runner: runs what the gateway assigns.
        configurations: what this worker can be switched to.
        max_message_bytes: largest message both ways.
        credentials: what it encrypts with; None if it does not.
    """

    def __init__(
        self,
        target: str,
        worker: Worker,
        runner: Runner,
        configurations: Sequence[Configuration],
        max_message_bytes: int,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._target = target
        self._worker = worker
        self._runner = runner
        self._configurations = configurations
        self._max_message_bytes = max_message_bytes
        self._credentials = credentials
        self._line: _Line | None = None
        self._failures = 0

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                await self._connect()
            except Exception as failure:  # noqa: BLE001 - not even a fault of ours may leave the worker unconnected
                error = _in_our_words(failure)
                longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**self._failures)
                delay = longest * random.uniform(0.5, 1.0)
                self._failures = min(self._failures + 1, 16)
                _log.warning(
                    "not connected to the gateway at %s: %s; trying again in %.1f s",
                    self._target,
                    error,
                    delay,
                )
                await asyncio.sleep(delay)

    def session_changed(self, change: SessionChange) -> None:
        """Tell the gateway, if there is one, of a session that came or went."""
        message = hub_pb2.SessionChanged(
            session=wire.session_to_proto(change.session),
            resident=change.resident,
            fault=str(change.error or ""),
        )
        if change.ready is not None:
            message.backend_start_s = change.ready.backend_start_s
            message.model_load_s = change.ready.model_load_s
            message.data_preparation_s = change.ready.data_preparation_s
        self._tell(hub_pb2.AgentControl(session_changed=message))

    def engine_changed(self, engine: Engine) -> None:
        """Tell the gateway, if there is one, that an engine is not what it was."""
        message = hub_pb2.EngineChanged(engine=wire.engine_to_proto(engine))
        self._tell(hub_pb2.AgentControl(engine_changed=message))

    def power_changed(self, mode: str, switch_s: float) -> None:
        """Tell the gateway, if there is one, which power mode is in force, and at what cost."""
        message = hub_pb2.PowerChanged(mode=mode, switch_s=switch_s)
        self._tell(hub_pb2.AgentControl(power_changed=message))

    def draining(self) -> None:
        """Tell the gateway, if there is one, that this worker takes nothing new."""
        self._tell(hub_pb2.AgentControl(draining=hub_pb2.Draining()))

    async def flush(self) -> None:
        """Return once all reports are with the gateway, or there is none."""
        if self._line is not None:
            await self._line.flush()

    def _tell(self, message: hub_pb2.AgentControl) -> None:
        # A gateway that comes later learns of it from the registration.
        if self._line is not None:
            self._line.control_outbox.put(message.SerializeToString())

    async def _connect(self) -> NoReturn:
        """One connection, from its beginning to its end, which is always an error."""
        options = [
            *rpc.channel_options(self._max_message_bytes),
            # Otherwise a new channel inherits the back-off of the one before it.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with open_channel(self._target, options, self._credentials) as channel:
            line = _Line(
                channel,
                self._worker,
                self._runner,
                self._configurations,
                self._target,
                self._max_message_bytes,
            )
            loop = asyncio.get_running_loop()
            settled: asyncio.TimerHandle | None = None
            try:
                await line.register()
                # Not at once: of two agents under one name, each would drive out the other at
                # the first back-off's pace.
                settled = loop.call_later(SETTLED_AFTER_S, self._settled)
                self._line = line
                _log.info("registered with the gateway at %s", self._target)
                await line.serve()
            finally:
                if settled is not None:
                    settled.cancel()
                self._line = None
                line.close()

    def _settled(self) -> None:
        self._failures = 0


def _in_our_words(failure: Exception) -> SynergaiError:
    match failure:
        case SynergaiError():
            return failure
        case grpc.aio.AioRpcError():
            return error_from_rpc(failure)
        case _:
            return rpc.unexpected("the connection")


class _Line:
    """The two streams of one registration."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        worker: Worker,
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
            "/synergai.v1.Hub/Control", response_deserializer=rpc.parse(hub_pb2.GatewayControl)
        )
        self._control = control()
        self._work: WorkChannel | None = None
        self._registered: hub_pb2.Registered
        self._sequence = 0
        self._acknowledged = 0
        self.control_outbox = Outbox(merge=False)
        self._work_outbox = Outbox(merge=True)
        self._assignments = Assignments(runner, self._work_outbox, configurations)

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
            self.control_outbox.send_all(lambda data: write(self._control, data)),
            self._work_outbox.send_all(work.write),
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
        """A work line, if the gateway has one that can be reached, or else a call."""
        registered, take = self._registered, self._assignments.take
        if registered.work_port:
            line = await open_line(
                self._host,
                registered.work_port,
                registered.session,
                take,
                max_message_bytes=self._max_message_bytes,
                timeout_s=min(registered.heartbeat_s, _LINE_TIMEOUT_S),
            )
            if line is not None:
                return line
        return WorkCall(self._channel, registered.session, take)

    async def flush(self) -> None:
        """Return once the gateway has what there is to report; bounded."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._work_outbox.wait_empty()
                await self.control_outbox.wait_empty()
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
                    self._worker.load(wire.session_from_proto(order.load.session))
                case "unload":
                    self._worker.unload(wire.session_from_proto(order.unload.session))

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._registered.heartbeat_s)
            if self._sequence - self._acknowledged >= MISSED_HEARTBEATS:
                raise Unavailable(f"it has missed {MISSED_HEARTBEATS} heartbeats")
            self._sequence += 1
            beat = self._worker.heartbeat()
            beat.sequence = self._sequence
            self.control_outbox.put(hub_pb2.AgentControl(heartbeat=beat).SerializeToString())
