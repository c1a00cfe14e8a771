"""A gateway's life: how it opens its ports, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

import grpc

from gateway.app import assemble
from gateway.hub.work_sockets import WorkSocketServer
from gateway.monitoring.http import HttpServer
from gateway.servicers.engine_details import EngineDetailsServicer
from gateway.servicers.fleet import FleetServicer
from gateway.servicers.health import HealthServicer
from gateway.servicers.jobs import JobsServicer
from gateway.servicers.oip import InferenceServicer
from gateway.servicers.repository import RepositoryServicer
from gateway.servicers.unimplemented import NOT_OFFERED, Elsewhere
from synergai.protocol import rpc
from synergai.protocol.tls import server_credentials
from synergai.runtime.ready_file import ready_file

if TYPE_CHECKING:
    from types import TracebackType

    from gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)

_ENVELOPE_BYTES: Final = 64 * 1024
"""What the hub's messages add to a client's; the rest of the bound is the client's."""
SERVICES: Final = (
    "grpc.health.v1.Health",
    "inference.GRPCInferenceService",
    "synergai.v1.Fleet",
    "synergai.v1.Jobs",
)
"""What clients are offered."""
_MAX_STREAMS: Final = 65_536
_GRACE_S: Final = 1.0
_HARD_EXIT_S: Final = 10.0
"""How much longer than the drain all of stopping may take."""


class Gateway:
    """A gateway, to be entered as a context.

    Attributes:
        address: where clients connect, once it has started; with the port that it really has.
        hub_address: where agents connect.
        http_address: where ``/metrics`` and ``/healthz`` are.

    Raises (on entering):
        SynergaiError: a port, the state directory or the dictionary cannot be used.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._stop_asked = asyncio.Event()
        self._stopped = asyncio.Lock()
        self.address = self.hub_address = self.http_address = ""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()
        await self._shut_down()

    def stop(self) -> None:
        """Begin to stop; again is harmless."""
        self._stop_asked.set()

    async def wait_stopped(self) -> None:
        """Return once it was told to stop and has.

        Raises:
            JournalBroken: it stopped because the journal could not be written.
        """
        await self._stop_asked.wait()
        await self._shut_down()
        if self._parts.journal.broken.done():
            raise self._parts.journal.broken.result()

    # --- start --------------------------------------------------------------------------------

    async def _start(self) -> None:
        settings, stack = self._settings, self._stack
        self._parts = parts = await assemble(settings, stack)
        parts.journal.broken.add_done_callback(lambda _: self.stop())
        hub_server = grpc.aio.server(options=_options(settings.max_message_bytes))
        client_server = grpc.aio.server(
            options=_options(settings.max_message_bytes - _ENVELOPE_BYTES)
        )
        for_clients = server_credentials(settings.tls_cert, settings.tls_key)
        for_agents = server_credentials(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self.hub_address = rpc.bind(hub_server, settings.hub, for_agents)
        self.address = rpc.bind(client_server, settings.listen, for_clients)
        if for_agents is None:
            # Under TLS, requests stay where they are encrypted.
            work_sockets = WorkSocketServer(parts.work_streams.serve_socket)
            stack.push_async_callback(work_sockets.close)
            host = settings.hub.rpartition(":")[0]
            parts.hub.work_port = await work_sockets.start(host, settings.work_port)
        hub_server.add_generic_rpc_handlers(
            (
                parts.hub.handler(),
                Elsewhere({}, f"agents connect here; {_port_of(self.address, 'clients')}"),
            )
        )
        inference = InferenceServicer(parts.inference, parts.catalogue, parts.admission)
        client_server.add_generic_rpc_handlers(self._for_clients(inference))
        http = HttpServer(parts.metrics.registry, lambda: parts.admission.open)
        self.http_address = await http.start(settings.http)
        stack.push_async_callback(http.close)
        for server in (hub_server, client_server):
            await server.start()
            stack.push_async_callback(server.stop, _GRACE_S)
        stack.callback(inference.stop_streams)
        stack.push_async_callback(parts.hub.close)
        _log.info(
            "serving clients on %s, agents on %s, http on %s; %d jobs to go on with",
            self.address,
            self.hub_address,
            self.http_address,
            parts.restored,
        )
        stack.enter_context(
            ready_file(
                settings.ready_file,
                address=self.address,
                hub_address=self.hub_address,
                http_address=self.http_address,
            )
        )

    def _for_clients(self, inference: InferenceServicer) -> tuple[grpc.GenericRpcHandler, ...]:
        """What the clients' port serves."""
        parts = self._parts
        catalogue, admission, metrics = parts.catalogue, parts.admission, parts.metrics
        return (
            inference.handler(),
            EngineDetailsServicer(catalogue, metrics, parts.clock).handler(),
            RepositoryServicer(parts.model_control, catalogue).handler(),
            JobsServicer(parts.jobs, parts.streamed).handler(),
            FleetServicer(parts.dispatcher, catalogue, parts.profiles, parts.clock).handler(),
            HealthServicer(catalogue, admission).handler(),
            *(_reflection() if self._settings.reflection else ()),
            Elsewhere(
                {**NOT_OFFERED, "/synergai.v1.Hub/": _port_of(self.hub_address, "agents")},
                "there is no such call here",
            ),
        )

    # --- stop ---------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        admission = self._parts.admission
        async with self._stopped:
            admission.close()
            if admission.requests:
                _log.info("stopping: %d requests are under way", admission.requests)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.drain_s):
                        await admission.wait_idle()
            await self._stack.aclose()


class GatewayProcess(Gateway):
    """A gateway that is all of its process: once told to stop, it ends even if a step hangs."""

    def stop(self) -> None:
        """Begin to stop; again is harmless."""
        if not self._stop_asked.is_set():
            timer = threading.Timer(self._settings.drain_s + _HARD_EXIT_S, _exit_hard)
            timer.daemon = True
            timer.start()
        super().stop()


def _exit_hard() -> None:
    _log.critical("stopping took too long: the process ends at once")
    os._exit(1)


def _port_of(address: str, who: str) -> str:
    """Where `who` should have connected; the host that is listened on may be none to dial."""
    return f"{who} connect to port {address.rpartition(':')[2]}"


def _reflection() -> tuple[grpc.GenericRpcHandler, ...]:
    # Imported only where it is asked for: it costs memory.
    from gateway.servicers.reflection import reflection_handlers

    return reflection_handlers(SERVICES)


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        *rpc.server_options(max_message_bytes),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        # Beyond its own bounds, 1000 and 3000, gRPC cancels calls that no handler has seen yet,
        # where admission would say what is the matter.
        ("grpc.server.max_pending_requests", _MAX_STREAMS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_STREAMS),
    ]
