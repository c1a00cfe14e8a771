"""The gateway's servers: start, drain and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from gateway.app import App, build_app
from gateway.calls.http.app import HttpApp, HttpServer
from gateway.calls.http.bodies import Bodies
from gateway.calls.http.fleet_page import FleetFeed, fleet_page_routes
from gateway.calls.http.monitoring import monitoring_routes
from gateway.calls.http.rest import RestCalls
from gateway.calls.servicers.fleet import FleetServicer, PolicyCalls, explain
from gateway.calls.servicers.health import HealthServicer
from gateway.calls.servicers.inference import InferenceServicer
from gateway.calls.servicers.jobs import JobsServicer
from gateway.calls.servicers.store import StoreServicer
from gateway.entry.access.caller import current_caller
from gateway.entry.call_guard import CallGuard, CallGuardInterceptor, guard
from gateway.grpc_server import (
    UNSUPPORTED_METHODS,
    bind_server,
    current_connection_limits,
    reflection_handlers,
    unimplemented,
)
from gateway.standby import select_this_pod
from synergai.runtime.addresses import is_loopback
from synergai.runtime.files import ready_file
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from types import TracebackType

    import grpc

    from gateway.gateway_settings import GatewaySettings
    from gateway.grpc_server import GrpcServer
    from synergai.errors import SynergaiError

_log = logging.getLogger(__name__)

SERVICES: Final = (
    "grpc.health.v1.Health",
    "inference.GRPCInferenceService",
    "synergai.v1.Fleet",
    "synergai.v1.Jobs",
    "synergai.v1.Store",
)
"""Services on the clients' port."""
_GRACE_S: Final = 1.0
_HARD_EXIT_S: Final = 10.0
"""Seconds beyond the drain after which a stopping process exits without cleanup."""


class Gateway:
    """A gateway with its servers; an asynchronous context manager."""

    # Set on entering.
    app: App
    _client_server: GrpcServer

    def __init__(self, config: GatewaySettings) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self._stop_requested = asyncio.Event()
        self._stopped = asyncio.Lock()
        self._failure: SynergaiError | None = None
        self.address = self.hub_address = self.http_address = ""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()
        await self._shut_down()

    @property
    def stopping(self) -> bool:
        """Whether the shutdown has started."""
        return self._stop_requested.is_set()

    @property
    def ready(self) -> bool:
        return not self.stopping

    def stop(self) -> None:
        """Start to shut down; idempotent."""
        self._stop_requested.set()

    async def wait_stopped(self) -> None:
        """Wait for `stop` and the shutdown."""
        await self._stop_requested.wait()
        await self._shut_down()
        if self.app.storage.journal.broken.done():
            raise self.app.storage.journal.broken.result()
        if self._failure is not None:
            raise self._failure

    # --- start --------------------------------------------------------------------------------

    async def _start(self, stack: AsyncExitStack) -> None:
        config = self._config
        self.app = app = await build_app(config, stack)
        app.storage.journal.broken.add_done_callback(lambda _: self.stop())
        hub, unread = app.agents.hub, app.base.unread
        connections = current_connection_limits()
        bind = partial(bind_server, config, stack, on_broken=self._fail)
        hub_server, self.hub_address = bind(
            config.hub,
            config.tls_client_ca,
            max_connections=connections.agents,
            max_bytes=config.max_message_bytes,
            interceptor=_interceptor(app.entry.agent_call_guard),
        )
        client_server, self.address = bind(
            config.listen,
            config.tls_clients_ca,
            max_connections=connections.clients,
            max_bytes=config.max_client_bytes,
            interceptor=_interceptor(app.entry.call_guard),
        )
        self._client_server = client_server
        hub_handlers = (
            hub.handler(),
            unimplemented(
                {},
                f"this port is for agents; {_port_hint(self.address, 'clients')}",
            ),
        )
        inference = InferenceServicer(app.calls, app.engines, unread)
        client_handlers = (inference.handler(), *self._client_handlers())
        http = HttpServer(self._http_app(), unread, config)
        self.http_address = await http.start(config.http)
        stack.push_async_callback(http.close)
        for server, handlers in ((hub_server, hub_handlers), (client_server, client_handlers)):
            server.start(handlers)
            stack.push_async_callback(server.stop, _GRACE_S)
        stack.callback(inference.stop_streams)
        stack.push_async_callback(hub.close)
        if config.leader_services:
            app.base.tasks.start(select_this_pod(config.leader_services))
        _log.info(
            "listening for clients on %s, agents on %s and work port %d, HTTP on %s://%s/; "
            "restored %s",
            self.address,
            self.hub_address,
            hub.work_port,
            "https" if config.tls_cert else "http",
            self.http_address,
            counted(app.jobs.restored, "unfinished job"),
        )
        stack.enter_context(
            ready_file(
                config.ready_file,
                address=self.address,
                hub_address=self.hub_address,
                http_address=self.http_address,
            )
        )

    def _fail(self, error: SynergaiError) -> None:
        """Stop because of an error, so that the service manager restarts the gateway."""
        self._failure = error
        self.stop()

    def _http_app(self) -> HttpApp:
        app, config = self.app, self._config
        bodies = Bodies(config.max_client_bytes, config.max_request_bytes)
        routes = [
            *RestCalls(app.calls, app.engines, bodies).routes(),
            *monitoring_routes(
                app.engines.metadata.version,
                app.base.metrics.render,
                app.engines.is_ready,
                lambda: app.storage.journal.accepting,
                lambda: app.storage.store.fault,
                lambda: (each.difference for each in app.fleet.catalogue.conflicts),
            ),
            *fleet_page_routes(
                FleetFeed(
                    app.fleet.page,
                    app.fleet.dispatcher.workers.values,
                    app.deployments,
                    app.base.clock.now,
                    app.fleet.dispatcher.record,
                ),
                lambda name: explain(
                    current_caller(),
                    app.fleet.dispatcher.core,
                    app.deployments(),
                    name,
                    app.base.clock.now(),
                ),
            ),
        ]
        if app.entry.call_guard.is_needed:
            guard(routes, app.entry.call_guard)
        # Beyond loopback, everyone may use it who can reach it.
        is_open = not is_loopback(config.http.rpartition(":")[0])
        return HttpApp(routes, any_host=is_open or config.access is not None)

    def _client_handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return the handlers of the clients' port other than the Open Inference Protocol."""
        app = self.app
        base, storage, fleet = app.base, app.storage, app.fleet
        jobs, agents = app.jobs, app.agents
        return (
            JobsServicer(jobs.submitted, jobs.uploads, jobs.results, base.unread).handler(),
            FleetServicer(
                fleet.dispatcher,
                base.clock,
                agents.engines,
                fleet.profiles,
                PolicyCalls(fleet.versions, agents.rollouts, fleet.model_control, base.metrics),
                app.deployments,
            ).handler(),
            HealthServicer(
                fleet.versions, app.entry.admission, lambda: storage.journal.accepting
            ).handler(),
            StoreServicer(storage.store, agents.placements, agents.pacer).handler(),
            *(reflection_handlers(SERVICES) if self._config.reflection else ()),
            unimplemented(
                {
                    **UNSUPPORTED_METHODS,
                    "/synergai.v1.Hub/": _port_hint(self.hub_address, "agents"),
                },
                "this port does not serve the method",
            ),
        )

    # --- stop ---------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        admission = self.app.entry.admission
        async with self._stopped:
            if admission.open:
                _log.info("stopping: draining %d requests", admission.requests)
            admission.close()
            self.app.held.close()
            self._client_server.retire()
            if admission.requests:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._config.drain_s):
                        await admission.wait_idle()
            await self._stack.aclose()


class GatewayProcess(Gateway):
    """A gateway with its own process, which exits even if a step of the shutdown hangs.

    With an audit log, SIGHUP does not end it: programs that rotate logs send it.
    """

    async def _start(self, stack: AsyncExitStack) -> None:
        if self._config.audit_log is not None:
            # Before the gateway is ready: a program that has waited for that may send it at once.
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, _ignore)
            stack.callback(loop.remove_signal_handler, signal.SIGHUP)
        await super()._start(stack)

    def stop(self) -> None:
        if not self._stop_requested.is_set():
            timer = threading.Timer(self._config.drain_s + _HARD_EXIT_S, _exit_hard)
            timer.daemon = True
            timer.start()
        super().stop()


def _interceptor(call_guard: CallGuard) -> CallGuardInterceptor | None:
    return CallGuardInterceptor(call_guard) if call_guard.is_needed else None


def _ignore() -> None:
    """Do nothing: the audit log notices without a signal that its file was moved."""


def _exit_hard() -> None:
    _log.critical("the shutdown timed out: exiting at once")
    os._exit(1)


def _port_hint(address: str, peers: str) -> str:
    """Return where `peers` should connect; the host listened on may not be dialable."""
    return f"{peers} connect to port {address.rpartition(':')[2]}"
