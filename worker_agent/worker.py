"""A worker of this machine: what runs one assignment at a time.

Most machines are one worker. Each place, a part of the cores, may be a worker instead, and each
device that runs alongside the others is one more. The gateway knows them by ids of their own: what
it says of a worker, it says of them. The workers of a machine share its model directory, the limit
of its memory and its class.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from synergai.errors import ConfigurationUnusable, EngineUnusable
from synergai.models.runtimes import MODULES
from synergai.runtime.cgroups import usable_cores
from synergai.runtime.memory import rss_bytes, usable_memory_bytes
from synergai.v1 import hub_pb2
from synergai.wire import converters
from synergai.wire.hub import HUB_VERSION
from worker_agent.hosts.memory import ENFORCEMENT
from worker_agent.hosts.pool import HostPool, SessionChange
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.client import HubClient
from worker_agent.placements.fetched import FOLDER
from worker_agent.providers.kinds import EMULATED, KINDS
from worker_agent.runner.runner import Runner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from synergai.domain import Configuration, Engine, EngineName, Session
    from worker_agent.agent_settings import AgentSettings
    from worker_agent.hosts.memory import HostMemory
    from worker_agent.hosts.process import HostProcess
    from worker_agent.hub_client.link import HubLink
    from worker_agent.peers.exchange import Exchange
    from worker_agent.placements.reconciler import Fetch, Reconciler
    from worker_agent.power.telemetry import PowerMeter
    from worker_agent.providers.choice import ProviderChoice

_REPORT_OVERHEAD_BYTES: Final = 64 << 10
"""Upper bound of what a report adds to a response."""

_log = logging.getLogger(__name__)


class LocalWorker:
    """A worker of this machine; only one of them has the power meter and the reconciler."""

    def __init__(
        self,
        config: AgentSettings,
        worker_id: str,
        instance: str,
        memory: HostMemory,
        exchange: Exchange,
        hub: HubLink,
        *,
        memory_bytes: int,
        start_task: Callable[[Coroutine[Any, Any, object]], object],
        on_idle: Callable[[], None],
        on_engine_fault: Callable[[Engine], None],
        describe_again: Callable[[EngineName], Coroutine[Any, Any, None] | None],
    ) -> None:
        self._config = config
        # Before the process enters the cgroup of a power mode.
        self._usable_cores = usable_cores(config.worker.cores)
        self._instance = instance
        self._memory = memory
        self.exchange = exchange
        self._start_task = start_task
        self._on_engine_fault = on_engine_fault
        self._describe_again = describe_again
        self._providers: dict[str, ProviderChoice] = {}
        self.id = worker_id
        # Filled on startup, like the engines.
        self.configurations: list[Configuration] = []
        self.engines: dict[EngineName, Engine] = {}
        # Engines that are no longer in the model directory.
        self._removed: set[EngineName] = set()
        self.meter: PowerMeter | None = None
        self.reconciler: Reconciler | None = None
        self.hosts = HostPool(
            config.worker.models,
            fetched=config.state / FOLDER,
            memory_bytes=memory_bytes,
            memory=memory,
            cores=config.worker.cores,
            providers=self._providers,
            pinned=config.worker.sessions,
            on_change=self._session_changed,
            on_unusable=self._configurations_unusable,
        )
        self.modes = PowerModeHosts(self.hosts)
        self.runner = Runner(
            self.modes,
            self.engines,
            time.monotonic,
            on_idle,
            max_response_bytes=config.max_message_bytes - _REPORT_OVERHEAD_BYTES,
        )
        self.hub = HubClient(hub, self, self.runner, self.configurations)

    def configure(
        self, configurations: Iterable[Configuration], providers: Iterable[ProviderChoice]
    ) -> None:
        """Set its configurations, and the execution providers that they name."""
        self.configurations[:] = configurations
        self._providers.update({choice.name: choice for choice in providers})

    def set_engine(self, engine: Engine) -> None:
        """Add or replace an engine."""
        if not engine.fault and not self._runs(engine):
            names = ", ".join(self._providers)
            fault = f"the backend {engine.backend!r} runs with none of the providers {names}"
            engine = replace(engine, fault=fault)
        self.engines[engine.name] = engine
        self._removed.discard(engine.name)

    def update_engine(self, engine: Engine) -> None:
        """Add or replace an engine, and tell the gateway."""
        self.set_engine(engine)
        self.hub.send_engine_changed(self.engines[engine.name])

    async def replace_engine(self, engine: Engine) -> None:
        """Load an engine's changed files, and describe them before a removed variant is needed."""
        await self.hosts.replace(engine.name)
        self.update_engine(engine)

    def remove_engine(self, engine: Engine) -> None:
        """Tell the gateway that an engine is gone, whose fault says so; it is not offered again."""
        self.update_engine(engine)
        self._removed.add(engine.name)

    def load(self, session: Session, *, preload: bool = False, limit_s: float = math.inf) -> None:
        """Load `session`; the result is sent as a ``SessionChanged``.

        An engine whose last load hung or crashed is tried again.
        """
        again = self._describe_again(session.engine)
        if again is None:
            self._load_now(session, preload=preload, limit_s=limit_s)
        else:
            self._start_task(self._load_after(again, session, preload=preload, limit_s=limit_s))

    async def _load_after(
        self,
        described: Coroutine[Any, Any, None],
        session: Session,
        *,
        preload: bool,
        limit_s: float,
    ) -> None:
        await described
        self._load_now(session, preload=preload, limit_s=limit_s)

    def _load_now(self, session: Session, *, preload: bool, limit_s: float) -> None:
        task = self.start_load(session, preload=preload, limit_s=limit_s)
        if task is None:
            engine = self.engines.get(session.engine)
            configuration = session.configuration
            reason = f"it cannot be loaded here with {configuration}"
            if engine is not None and engine.fault:
                reason += f": {engine.fault}"
            error = EngineUnusable(reason)
            variant = configuration.variant
            if engine is not None and variant and not engine.has_variant(variant):
                error = ConfigurationUnusable(f"it has no variant {variant!r} here")
            if configuration.base not in self.configurations:
                available = "; ".join(map(str, self.configurations))
                error = ConfigurationUnusable(
                    f"this worker has no configuration {configuration}; available: {available}"
                )
            self.hub.send_session_changed(SessionChange(session, resident=False, error=error))
            return
        again = partial(self._load_now, session, preload=preload, limit_s=limit_s)
        task.add_done_callback(partial(self._on_load_ended, again))

    def _on_load_ended(self, again: Callable[[], None], load: asyncio.Task[HostProcess]) -> None:
        """Load again if the engine's files were replaced since."""
        if not load.cancelled():
            load.exception()  # which the pool has logged and reported
        elif not self.hosts.is_closing:
            again()

    def unload(self, session: Session) -> None:
        """Unload `session` if it is idle."""
        self._start_task(self.hosts.unload(session))

    def start_load(
        self, session: Session, *, preload: bool = False, limit_s: float = math.inf
    ) -> asyncio.Task[HostProcess] | None:
        """Load `session`; return None if there is no such usable engine or configuration."""
        engine = self.engines.get(session.engine)
        configuration = session.configuration
        if (
            engine is None
            or engine.fault
            or (configuration.variant and not engine.has_variant(configuration.variant))
            or configuration.base not in self.configurations
        ):
            _log.warning("cannot load %s: no such usable engine or configuration", session)
            return None
        return self.hosts.preload(session, limit_s) if preload else self.hosts.load(session)

    # --- worker_agent.hub_client.registration.ControlHandler ------------------------------------

    def register_message(self) -> hub_pb2.Register:
        """Return the current description of this worker."""
        return hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=self.id,
            worker_class=self._config.worker.worker_class,
            agent_version=self._config.worker.agent_version,
            cores=self._usable_cores,
            memory_bytes=usable_memory_bytes(),
            configurations=map(converters.configuration_to_proto, self.configurations),
            engines=[
                converters.engine_to_proto(engine)
                for engine in self.engines.values()
                if engine.name not in self._removed
            ],
            sessions=[
                converters.session_to_proto(session)
                for session in self.hosts.resident_sessions()
                if session.engine not in self._removed
            ],
            power_mode=self.modes.mode,
            meter="" if self.meter is None else self.meter.source,
            instance=self._instance,
            backends=() if self.reconciler is None else _installed_backends(),
            labels=self._config.worker.labels,
            memory_limit_bytes=self._memory.limit_bytes,
            memory_enforcement=ENFORCEMENT if self._memory.limit_bytes else "",
            unusable=map(converters.unusable_session_to_proto, self.hosts.unusable_sessions()),
            session_budget_bytes=self.hosts.memory_bytes,
            session_memory=[
                hub_pb2.SessionMemory(session=converters.session_to_proto(session), bytes=size)
                for session, size in self.hosts.session_bytes().items()
            ],
            pinned=map(converters.session_to_proto, self._config.worker.sessions),
            engine_cores=self._usable_cores,
            peer_port=self.exchange.port,
            peer_certificate=self.exchange.certificate,
        )

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        """Return the memory of the agent and all engine hosts, and the machine's power draw."""
        self.exchange.held.drop_old()
        engines = self._memory.used_bytes()
        beat = hub_pb2.Heartbeat(rss_bytes=rss_bytes() + engines, engines_rss_bytes=engines)
        for worker_id, link in self.exchange.peers.links.items():
            beat.peers.add(worker_id=worker_id, **link._asdict())
        if self.meter is not None and (draw := self.meter.read()) is not None:
            beat.draw.watts, beat.draw.joules = draw.watts, draw.joules
        return beat

    def place(self, placements: Sequence[hub_pb2.Placement], fetch: Fetch) -> None:
        """Fetch the versions placed on this worker, and remove others."""
        if self.reconciler is not None:
            self.reconciler.place(placements, fetch)

    # --- internals ------------------------------------------------------------------------------

    def _runs(self, engine: Engine) -> bool:
        """Return whether any configuration can run the engine's backend."""
        names = {each.execution_provider for each in self.configurations}
        return "" in names or any(
            engine.backend in KINDS[choice.kind].backends for choice in self._providers.values()
        )

    def _session_changed(self, change: SessionChange) -> None:
        self.hub.send_session_changed(change)
        engine = self.engines.get(change.session.engine)
        if isinstance(change.error, ConfigurationUnusable) or engine is None:
            return
        if isinstance(change.error, EngineUnusable):
            self._on_engine_fault(replace(engine, fault=str(change.error)))

    def _configurations_unusable(self, engine: EngineName) -> None:
        sessions = self.hosts.unusable_sessions()
        found = [each for each in sessions if each.session.engine == engine]
        self.hub.send_configurations_unusable(engine, found)


def _installed_backends() -> list[str]:
    """Return the names of the project's own backends whose runtime is installed."""
    return sorted(
        {EMULATED, *(name for name, modules in MODULES.items() if any(map(find_spec, modules)))}
    )
