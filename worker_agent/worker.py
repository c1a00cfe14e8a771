"""This machine as a worker: what it offers to the gateway, and what the gateway orders."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.errors import ConfigurationUnusable, EngineUnusable
from synergai.models.directories import ModelDirectories
from synergai.runtime.resources import rss_bytes, usable_memory_bytes
from synergai.runtime.tasks import TaskBag
from synergai.v1 import hub_pb2
from synergai.wire import converters
from synergai.wire.limits import HUB_VERSION
from worker_agent.hosts.memory import ENFORCEMENT, TooLarge
from worker_agent.hosts.pool import HostPool
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hosts.sessions import SessionChange
from worker_agent.placements.fetched import FOLDER
from worker_agent.placements.sending import send_engine
from worker_agent.providers import EMULATED, RUNTIMES, has_runtime
from worker_agent.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from synergai.domain import Engine, EngineName, Session
    from worker_agent.agent_settings import AgentSettings
    from worker_agent.hosts.process import HostProcess
    from worker_agent.hub_client.client import HubClient
    from worker_agent.machine import Machine
    from worker_agent.placements.reconciler import Fetch, Reconciler
    from worker_agent.placements.sending import Send

_REPORT_OVERHEAD_BYTES: Final = 64 << 10
"""Upper bound of what a report adds to a response."""

_log = logging.getLogger(__name__)


class LocalWorker:
    """This machine as a worker.

    Args:
        describe_again: loads an engine again if its last load hung or crashed.
    """

    def __init__(
        self,
        config: AgentSettings,
        machine: Machine,
        hub: HubClient,
        *,
        on_engine_fault: Callable[[Engine], None],
        describe_again: Callable[[EngineName], Awaitable[None]],
        reconciler: Reconciler,
    ) -> None:
        self._settings = config.worker
        self._cores = machine.cores
        self._memory = machine.memory
        self.exchange = machine.exchange
        self.hub = hub
        self._instance = machine.instance
        self._on_engine_fault = on_engine_fault
        self._describe_again = describe_again
        self._reconciler = reconciler
        self._meter = machine.meter
        self.configurations = machine.configurations
        providers = {choice.name: choice for choice in self._settings.providers}
        backends = (choice.details.backends for choice in providers.values())
        self._provider_backends = frozenset[str]().union(*backends)
        self._provider_names = ", ".join(providers)
        self._engines: dict[EngineName, Engine] = {}
        # Engines that are no longer in the model directory.
        self._removed: set[EngineName] = set()
        self._models = ModelDirectories(self._settings.models, config.state / FOLDER)
        self.hosts = HostPool(
            self._models,
            memory_bytes=self._settings.memory_bytes,
            memory=machine.memory,
            cores=self._settings.cores,
            providers=providers,
            pinned=self._settings.sessions,
            on_change=self._session_changed,
            on_unusable=self._configurations_unusable,
        )
        self._modes = PowerModeHosts(self.hosts, machine.power)
        self._idle = asyncio.Event()
        self.runner = Runner(
            self._modes,
            self._engines,
            time.monotonic,
            self._idle.set,
            max_response_bytes=config.max_message_bytes - _REPORT_OVERHEAD_BYTES,
        )
        self._loads = TaskBag()
        self._sends = TaskBag()
        self._unloads = TaskBag()

    async def drain(self, within_s: float) -> None:
        """Complete the outstanding work within a time, and report it to the gateway."""
        self.hub.send_draining()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self.runner.is_idle:
                    self._idle.clear()
                    await self._idle.wait()
        await self.hub.flush()

    async def close(self) -> None:
        await self._loads.close()
        await self._sends.close()
        await self._modes.close()
        await self._unloads.wait()

    def set_engine(self, engine: Engine) -> None:
        if not engine.fault and not self._runs(engine):
            engine = replace(
                engine,
                fault=f"the backend {engine.backend!r} runs with none of the providers "
                f"{self._provider_names}",
            )
        self._engines[engine.name] = engine
        self._removed.discard(engine.name)

    def update_engine(self, engine: Engine) -> None:
        self.set_engine(engine)
        self.hub.send_engine_changed(self._engines[engine.name])

    async def replace_engine(self, engine: Engine) -> None:
        """Load an engine's changed files, and describe them before a removed variant is needed."""
        await self.hosts.replace(engine.name)
        self.update_engine(engine)

    def remove_engine(self, engine: Engine) -> None:
        """Tell the gateway that an engine is gone, whose fault says so; it is not offered again."""
        self.update_engine(engine)
        self._removed.add(engine.name)

    def load_session(self, session: Session, *, preload: bool, limit_s: float) -> None:
        """Load `session`; the result is sent as a ``SessionChanged``.

        An engine whose last load hung or crashed is tried again.
        """
        self._loads.start(self._load(session, preload=preload, limit_s=limit_s))

    async def _load(self, session: Session, *, preload: bool, limit_s: float) -> None:
        await self._describe_again(session.engine)
        while not self.hosts.is_closing:
            load = self.start_load(session, preload=preload, limit_s=limit_s)
            if isinstance(load, EngineUnusable):
                self.hub.send_session_changed(SessionChange(session, resident=False, error=load))
                return
            await asyncio.wait([load])
            if not load.cancelled():  # the pool has reported the result
                return
            # The engine's files were replaced meanwhile.

    def unload_session(self, session: Session) -> None:
        self._unloads.start(self.hosts.unload(session))

    def start_load(
        self, session: Session, *, preload: bool = False, limit_s: float = math.inf
    ) -> asyncio.Task[HostProcess] | EngineUnusable:
        """Load `session`; return the reason if there is no such usable engine or configuration."""
        if (refusal := self._load_refusal(session)) is not None:
            _log.warning("cannot load %s: %s", session, refusal)
            return refusal
        return self.hosts.preload(session, limit_s) if preload else self.hosts.load(session)

    def _load_refusal(self, session: Session) -> EngineUnusable | None:
        """Return why a session cannot be loaded here; None if it can."""
        engine = self._engines.get(session.engine)
        configuration = session.configuration
        if configuration.base not in self.configurations:
            available = "; ".join(map(str, self.configurations))
            return ConfigurationUnusable(
                f"this worker has no configuration {configuration}; available: {available}"
            )
        variant = configuration.variant
        if engine is not None and variant and not engine.has_variant(variant):
            return ConfigurationUnusable(f"it has no variant {variant!r} here")
        if engine is None or engine.fault:
            fault = "" if engine is None else f": {engine.fault}"
            return EngineUnusable(f"it cannot be loaded here with {configuration}{fault}")
        return None

    # --- worker_agent.hub_client.client.ControlHandler ------------------------------------

    async def register_message(self) -> hub_pb2.Register:
        fetched = await asyncio.to_thread(self._models.fetched_of, list(self._engines))
        return hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=self._settings.worker_id,
            worker_class=self._settings.worker_class,
            agent_version=self._settings.agent_version,
            cores=self._cores,
            memory_bytes=usable_memory_bytes(),
            configurations=map(converters.configuration_to_proto, self.configurations),
            engines=[
                converters.engine_to_proto(engine)
                for engine in self._engines.values()
                if engine.name not in self._removed
            ],
            sessions=[
                converters.session_to_proto(session)
                for session in self.hosts.resident_sessions()
                if session.engine not in self._removed
            ],
            power_mode=self._modes.mode,
            meter=self._meter.source,
            instance=self._instance,
            backends=_installed_backends(),
            labels=self._settings.labels,
            memory_limit_bytes=self._memory.limit_bytes,
            memory_enforcement=ENFORCEMENT if self._memory.limit_bytes else "",
            unusable=map(converters.unusable_session_to_proto, self.hosts.unusable_sessions()),
            session_budget_bytes=self.hosts.memory_bytes,
            session_memory=[
                hub_pb2.SessionMemory(session=converters.session_to_proto(session), bytes=size)
                for session, size in self.hosts.session_bytes().items()
            ],
            pinned=map(converters.session_to_proto, self._settings.sessions),
            engine_cores=self._cores,
            peer_port=self.exchange.port,
            peer_certificate=self.exchange.certificate,
            fetched=fetched,
        )

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        """Return the memory of the agent and all engine hosts, and the machine's power draw."""
        self.exchange.held.drop_old()
        engines = self._memory.used_bytes()
        beat = hub_pb2.Heartbeat(rss_bytes=rss_bytes() + engines, engines_rss_bytes=engines)
        for worker_id, link in self.exchange.peers.links.items():
            beat.peers.add(worker_id=worker_id, **link._asdict())
        if (draw := self._meter.read()) is not None:
            beat.draw.watts, beat.draw.joules = draw.watts, draw.joules
        return beat

    def place_engines(self, placements: Sequence[hub_pb2.Placement], fetch: Fetch) -> None:
        self._reconciler.set_placements(placements, fetch)

    def send_engine(self, engine: EngineName, send: Send) -> None:
        self._sends.start(send_engine(self._settings.models, engine, send))

    # --- internals ------------------------------------------------------------------------------

    def _runs(self, engine: Engine) -> bool:
        """Return whether any configuration can run the engine's backend."""
        on_cpu = any(not each.execution_provider for each in self.configurations)
        return on_cpu or engine.backend in self._provider_backends

    def _session_changed(self, change: SessionChange) -> None:
        self.hub.send_session_changed(change)
        engine = self._engines.get(change.session.engine)
        if isinstance(change.error, ConfigurationUnusable) or engine is None:
            return
        if isinstance(change.error, EngineUnusable):
            too_large = isinstance(change.error, TooLarge)
            self._on_engine_fault(replace(engine, fault=str(change.error), too_large=too_large))

    def _configurations_unusable(self, engine: EngineName) -> None:
        sessions = self.hosts.unusable_sessions()
        found = [each for each in sessions if each.session.engine == engine]
        self.hub.send_configurations_unusable(engine, found)


def _installed_backends() -> list[str]:
    """Return the names of the project's own backends whose runtime is installed."""
    return sorted([EMULATED, *filter(has_runtime, RUNTIMES)])
