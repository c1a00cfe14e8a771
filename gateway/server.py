"""A gateway's life: what it is made of, how it starts, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final, Self

import grpc

from gateway.admission import Admission
from gateway.clock import Clock
from gateway.dispatcher import Dispatcher
from gateway.event_log import EventLog
from gateway.fleet import Catalogue
from gateway.http import HttpServer
from gateway.hub import Hub
from gateway.inference import Inference
from gateway.jobs import Jobs
from gateway.journal import Journal
from gateway.metrics import Metrics
from gateway.model_control import ModelControl
from gateway.power import PowerCollector
from gateway.profiles import Profiles
from gateway.scheduling.core import SchedulerCore
from gateway.servicers.elsewhere import NOT_OFFERED, Elsewhere
from gateway.servicers.engine_details import EngineDetailsServicer
from gateway.servicers.fleet import FleetServicer
from gateway.servicers.health import HealthServicer
from gateway.servicers.jobs import JobsServicer
from gateway.servicers.oip import InferenceServicer
from gateway.servicers.repository import RepositoryServicer
from gateway.streamed import StreamedJobs
from gateway.work_lines import WorkLines
from synergai import rpc
from synergai.machine import dictionary_in
from synergai.ready_file import ready_file
from synergai.tls import Identity, server_credentials

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
_WINDOW_BYTES: Final = 16 * 1024 * 1024
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
        if self._journal.broken.done():
            raise self._journal.broken.result()

    # --- start --------------------------------------------------------------------------------

    async def _start(self) -> None:
        settings, stack = self._settings, self._stack
        clock, metrics = Clock(), Metrics()
        self._admission = admission = Admission(settings.max_requests, settings.max_request_bytes)
        self._journal = journal = Journal(settings.state, kept_jobs=settings.kept_jobs)
        stack.push_async_callback(journal.close)
        journal.broken.add_done_callback(lambda _: self.stop())
        profiles = Profiles(settings.dictionary or dictionary_in(settings.state))
        stack.push_async_callback(profiles.close)
        core = SchedulerCore(settings.scheduling, profiles.dictionary, journal.epoch)
        recorder = None
        if settings.event_log is not None:
            recorder = stack.enter_context(
                EventLog(
                    settings.event_log, settings.scheduling, profiles.dictionary, journal.epoch
                )
            )
        known = await journal.engines()
        catalogue = Catalogue(known.union(entry.engine for entry in profiles.dictionary))
        dispatcher = Dispatcher(
            core, journal, clock, metrics, learned=profiles.learned, recorder=recorder
        )
        stack.callback(dispatcher.close)
        jobs = Jobs(
            dispatcher, catalogue, journal, admission, metrics, clock, max_jobs=settings.max_jobs
        )
        restored = await jobs.restore()
        streamed = StreamedJobs(
            dispatcher, catalogue, admission, metrics, clock, window_bytes=_WINDOW_BYTES
        )
        inference = Inference(dispatcher, catalogue, admission, metrics, clock, journal.epoch)
        model_control = ModelControl(dispatcher, catalogue, profiles.dictionary)
        hub = Hub(
            dispatcher,
            catalogue,
            model_control,
            metrics,
            clock,
            remember=journal.remember,
            heartbeat_s=settings.heartbeat_s,
            max_message_bytes=settings.max_message_bytes,
        )
        metrics.gauge("queued", "Jobs and requests that wait", lambda: dispatcher.queued)
        metrics.gauge("waiting_requests", "Requests on the line", lambda: admission.requests)
        metrics.gauge("workers", "Connected workers", lambda: dispatcher.size)
        # As a list at once: it is read in another thread, while workers come and go.
        metrics.registry.register(PowerCollector(lambda: list(dispatcher.workers())))

        hub_server = grpc.aio.server(options=_options(settings.max_message_bytes))
        client_server = grpc.aio.server(
            options=_options(settings.max_message_bytes - _ENVELOPE_BYTES)
        )
        identity = Identity.read(settings.tls_cert, settings.tls_key)
        for_agents = server_credentials(identity, settings.tls_client_ca)
        self.hub_address = rpc.bind(hub_server, settings.hub, for_agents)
        self.address = rpc.bind(client_server, settings.listen, server_credentials(identity))
        if settings.tls_cert is None:
            # Under TLS, requests stay where they are encrypted.
            lines = WorkLines(hub.open_line)
            stack.push_async_callback(lines.close)
            host = settings.hub.rpartition(":")[0]
            hub.work_port = await lines.start(host, settings.work_port)
        hub_server.add_generic_rpc_handlers(
            (
                hub.handler(),
                Elsewhere({}, f"agents connect here; {_port_of(self.address, 'clients')}"),
            )
        )
        client_server.add_generic_rpc_handlers(
            (
                InferenceServicer(inference, catalogue, admission).handler(),
                EngineDetailsServicer(catalogue, metrics, clock).handler(),
                RepositoryServicer(model_control, catalogue).handler(),
                JobsServicer(jobs, streamed).handler(),
                FleetServicer(dispatcher, catalogue, profiles, clock).handler(),
                HealthServicer(catalogue, admission).handler(),
                *(_reflection() if settings.reflection else ()),
                Elsewhere(
                    {**NOT_OFFERED, "/synergai.v1.Hub/": _port_of(self.hub_address, "agents")},
                    "there is no such call here",
                ),
            )
        )
        http = HttpServer(metrics.registry, lambda: admission.open)
        self.http_address = await http.start(settings.http)
        stack.push_async_callback(http.close)
        for server in (hub_server, client_server):
            await server.start()
            stack.push_async_callback(server.stop, _GRACE_S)
        stack.push_async_callback(hub.close)
        _log.info(
            "serving clients on %s, agents on %s, http on %s; %d jobs to go on with",
            self.address,
            self.hub_address,
            self.http_address,
            restored,
        )
        stack.enter_context(
            ready_file(
                settings.ready_file,
                address=self.address,
                hub_address=self.hub_address,
                http_address=self.http_address,
            )
        )

    # --- stop ---------------------------------------------------------------------------------

    async def _shut_down(self) -> None:
        async with self._stopped:
            self._admission.close()
            if self._admission.requests:
                _log.info("stopping: %d requests are under way", self._admission.requests)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.drain_s):
                        await self._admission.wait_idle()
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
