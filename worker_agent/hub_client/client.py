"""The agent's client of the gateway's hub, which reconnects with exponential backoff.

Engine hosts stay resident while the gateway is unreachable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

import grpc

from synergai.errors import SynergaiError
from synergai.runtime.backoff import Backoff
from synergai.v1 import hub_pb2
from synergai.wire import converters, rpc
from synergai.wire.status import error_from_call
from worker_agent.hub_client.registration import Registration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import Engine, EngineName, UnusableSession
    from synergai.v1 import common_pb2
    from worker_agent.hosts.residents import SessionChange
    from worker_agent.hub_client.link import HubLink
    from worker_agent.hub_client.registration import ControlHandler

BACKOFF: Final = Backoff(initial_s=0.5, max_s=10.0)
_BACKOFF_OF_SEVERAL: Final = Backoff(initial_s=0.25, max_s=2.0)
"""For several gateways, each of which is tried less often."""
BACKOFF_RESET_AFTER_S: Final = 5.0
"""A connection that lasts this long resets the backoff."""

_log = logging.getLogger(__name__)


class HubClient:
    """Keeps the agent registered with its gateway."""

    def __init__(self, hub: HubLink, *, backoff: Backoff | None = None) -> None:
        self._hub = hub
        self._registration: Registration | None = None
        several = hub.gateways > 1
        self._backoff = backoff or (_BACKOFF_OF_SEVERAL if several else BACKOFF)
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
                backoff_reset = loop.call_later(BACKOFF_RESET_AFTER_S, self._reset_backoff)
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
