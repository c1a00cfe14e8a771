"""The agent's connection to its gateway, dialled again whenever it breaks.

Engine hosts stay resident meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

import grpc

from synergai.errors import SynergaiError
from synergai.protocol import converters, rpc
from synergai.protocol.call_errors import error_from_call
from synergai.protocol.tls import open_channel
from synergai.runtime.backoff import Backoff
from synergai.v1 import hub_pb2
from worker_agent.hub_client.registration import Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.domain import Configuration, Engine
    from worker_agent.hosts.pool import SessionChange
    from worker_agent.hub_client.registration import ControlHandler
    from worker_agent.runner import Runner

BACKOFF: Final = Backoff(initial_s=0.5, max_s=10.0)
SETTLED_AFTER_S: Final = 5.0
"""A connection that lasted so long was a good one: back-off begins anew after it."""

_log = logging.getLogger(__name__)


class HubClient:
    """Keeps the agent connected.

    Args:
        target: the gateway's hub, ``host:port``.
        worker: whom it speaks for.
        runner: runs what the gateway assigns.
        configurations: what this worker can be switched to.
        max_message_bytes: largest message both ways.
        credentials: asked before each dial what it encrypts with, since files are renewed; None
            if it does not.
        backoff: how long it waits before it dials again.
    """

    def __init__(
        self,
        target: str,
        worker: ControlHandler,
        runner: Runner,
        configurations: Sequence[Configuration],
        max_message_bytes: int,
        credentials: Callable[[], grpc.ChannelCredentials | None] = lambda: None,
        *,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self._target = target
        self._worker = worker
        self._runner = runner
        self._configurations = configurations
        self._max_message_bytes = max_message_bytes
        self._credentials = credentials
        self._link: Registration | None = None
        self._backoff = backoff
        self._delays = backoff.delays()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            try:
                await self._connect()
            except Exception as failure:  # noqa: BLE001 - not even a fault of ours may leave the worker unconnected
                error = _in_our_words(failure, self._target)
                pause = next(self._delays)
                _log.warning(
                    "not connected to the gateway at %s, trying again in %.1f s: %s",
                    self._target,
                    pause,
                    error,
                )
                await asyncio.sleep(pause)

    def session_changed(self, change: SessionChange) -> None:
        """Tell the gateway, if there is one, of a session that came or went."""
        message = hub_pb2.SessionChanged(
            session=converters.session_to_proto(change.session),
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
        message = hub_pb2.EngineChanged(engine=converters.engine_to_proto(engine))
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
        if self._link is not None:
            await self._link.flush()

    def _tell(self, message: hub_pb2.AgentControl) -> None:
        # A gateway that comes later learns of it from the registration.
        if self._link is not None:
            self._link.control_queue.put(message.SerializeToString())

    async def _connect(self) -> NoReturn:
        """One connection, from its beginning to its end, which is always an error."""
        options = [
            *rpc.channel_options(self._max_message_bytes),
            # Otherwise a new channel inherits the back-off of the one before it.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        credentials = await asyncio.to_thread(self._credentials)
        async with open_channel(self._target, options, credentials) as channel:
            link = Registration(
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
                await link.register()
                # Not at once: of two agents under one name, each would drive out the other at
                # the first back-off's pace.
                settled = loop.call_later(SETTLED_AFTER_S, self._settled)
                self._link = link
                _log.info("registered with the gateway at %s", self._target)
                await link.serve()
            finally:
                if settled is not None:
                    settled.cancel()
                self._link = None
                link.close()

    def _settled(self) -> None:
        self._delays = self._backoff.delays()


def _in_our_words(failure: Exception, target: str) -> SynergaiError:
    match failure:
        case SynergaiError():
            return failure
        case grpc.aio.AioRpcError():
            return error_from_call(target, failure.code(), failure.details() or "")
        case _:
            return rpc.log_internal_error("the connection")
