"""The agent: makes the engines of one machine available to a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.descriptions import CACHE_FILE
from synergai.models.directory import ModelDirectory
from synergai.protocol import converters
from synergai.protocol.hub import HUB_VERSION
from synergai.protocol.tls import ClientTls
from synergai.runtime.clock import Clock
from synergai.runtime.memory import physical_memory_bytes, rss_bytes
from synergai.runtime.ready_file import ready_file
from synergai.v1 import hub_pb2
from worker_agent.hosts.memory import ENFORCEMENT, HostMemory
from worker_agent.hosts.pool import HostPool, SessionChange
from worker_agent.hosts.power_modes import PowerModeHosts
from worker_agent.hub_client.client import HubClient
from worker_agent.hub_client.identity import TOKEN_VARIABLE, WorkerIdentity
from worker_agent.hub_client.input_reader import InputReader
from worker_agent.hub_client.remote import RemoteHub
from worker_agent.inventory.inventory import Inventory
from worker_agent.inventory.runtimes import installed_backends
from worker_agent.inventory.watch import ModelDirectoryWatch
from worker_agent.placements.fetched import FOLDER, FetchedEngines
from worker_agent.placements.reconciler import Reconciler
from worker_agent.power.files import Files
from worker_agent.power.manager import PowerManager
from worker_agent.power.telemetry import PowerMeter
from worker_agent.runner.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from pathlib import Path
    from types import TracebackType

    from synergai.domain import Configuration, Engine, EngineName, Session
    from synergai.errors import InternalError
    from worker_agent.config import AgentConfig
    from worker_agent.hosts.process import HostProcess
    from worker_agent.hub_client.link import HubLink
    from worker_agent.placements.reconciler import Fetch
    from worker_agent.standalone.server import StandaloneServer

_REPORT_OVERHEAD_BYTES: Final = 64 << 10
"""Upper bound of what a report adds to a response."""

_log = logging.getLogger(__name__)


class Agent:
    """A worker's agent. Use it as an async context manager and await `wait_stopped`.

    Args:
        config: the configuration.
        hub: the way to reach the gateway; by default, over the network.

    Attributes:
        address: address of its own Open Inference Protocol server; empty if there is none.
    """

    def __init__(self, config: AgentConfig, hub: HubLink | None = None) -> None:
        self._config = config
        self._instance = secrets.token_hex(8)
        self._read_tls()  # report invalid certificate files before starting anything
        # Filled on startup, like the engines.
        self._configurations: list[Configuration] = []
        self.address = ""
        self._engines: dict[EngineName, Engine] = {}
        self._inventory: Inventory | None = None
        self._memory = HostMemory(config.memory_limit_bytes)
        fetched = config.state / FOLDER
        self._hosts = HostPool(
            config.models,
            fetched=fetched,
            memory_bytes=config.memory_bytes,
            memory=self._memory,
            cores=config.cores,
            hang_timeout_s=config.hang_timeout_s,
            pinned=config.sessions,
            on_change=self._session_changed,
        )
        self._modes = PowerModeHosts(self._hosts)
        self._meter: PowerMeter | None = None
        self._idle = asyncio.Event()
        self._runner = Runner(
            self._modes,
            self._engines,
            time.monotonic,
            self._idle.set,
            max_response_bytes=config.max_message_bytes - _REPORT_OVERHEAD_BYTES,
        )
        if hub is None:
            # Removed from the environment, which engine hosts inherit.
            token = os.environ.pop(TOKEN_VARIABLE, "")
            identity = WorkerIdentity(config.state, config.enrolment_token_file, token)
            hub = remote = RemoteHub(
                config.gateway, config.max_message_bytes, self._read_tls, identity
            )
            remote.check()
        self._inputs = InputReader(config.input_roots, config.max_message_bytes)
        self._hub = HubClient(hub, self, self._runner, self._configurations)
        self._reconciler = Reconciler(
            FetchedEngines(fetched, config.disk_budget), self._find_own, self._hub.send_placed
        )
        self._standalone: StandaloneServer | None = None
        self._stop = asyncio.Event()
        self._failure: InternalError | None = None
        self._tasks = asyncio.TaskGroup()
        self._exit_stack: contextlib.AsyncExitStack

    async def __aenter__(self) -> Self:
        self._config.state.mkdir(parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            files = Files(self._config.root)
            power = await PowerManager.open(
                self._config.power,
                self._config.power_modes,
                files,
                self._hub.send_power_changed,
            )
            self._modes.set_power(power)
            stack.push_async_callback(self._modes.close)
            self._meter = await asyncio.to_thread(PowerMeter, files)
            stack.push_async_callback(asyncio.to_thread, self._meter.close)
            self._configurations += self._config.configurations(self._modes.modes)
            stack.push_async_callback(self._hosts.close)
            self._inventory = inventory = Inventory(
                self._config.models,
                self._config.state / CACHE_FILE,
                memory=self._memory,
                agent_version=self._config.agent_version,
                fetched=self._config.state / FOLDER,
            )
            self._engines.update(await inventory.discover())
            # A gateway holds requests for engines under inspection; our own server does not.
            first = {session.engine for session in self._config.sessions} & set(self._engines)
            if self._config.listen is not None:
                first = set(self._engines)
            await inventory.describe(first, self._set_engine)
            # Failures are logged by the pool; the registration lists the resident sessions.
            loads = map(self._load, self._config.sessions)
            await asyncio.gather(*filter(None, loads), return_exceptions=True)
            await stack.enter_async_context(self._tasks)
            stack.callback(self._runner.abandon_all)
            if self._config.listen is not None:
                self._standalone = self._create_standalone()
                self.address = await self._standalone.start(
                    self._config.listen, self._config.max_message_bytes
                )
                stack.push_async_callback(self._standalone.stop)
            stack.enter_context(ready_file(self._config.ready_file, address=self.address))
            for loop in (
                self._hub.run(),
                self._hosts.enforce_memory_budget(),
                self._reconciler.run(),
                self._track_engines(inventory),
            ):
                stack.callback(self._start_task(loop).cancel)
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        # Without the error, which the task group would wrap in a group.
        await self._exit_stack.aclose()

    def stop(self) -> None:
        """Start a graceful shutdown: complete outstanding work, accept no more. Idempotent."""
        self._stop.set()

    async def wait_stopped(self) -> None:
        """Wait for `stop`, then until the outstanding work is complete or ``drain_s`` is over.

        Raises:
            InternalError: the agent stopped because its own server could not be replaced.
        """
        await self._stop.wait()
        _log.info("draining")
        if self._standalone is not None:
            self._standalone.drain()
        self._hub.send_draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_s):
                while not self._runner.is_idle:
                    self._idle.clear()
                    await self._idle.wait()
        await self._hub.flush()
        if self._failure is not None:
            raise self._failure

    # --- worker_agent.hub_client.registration.ControlHandler ------------------------------------

    def register_message(self) -> hub_pb2.Register:
        """Return the current description of this worker."""
        return hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=self._config.worker_id,
            worker_class=self._config.worker_class,
            agent_version=self._config.agent_version,
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=physical_memory_bytes(),
            configurations=map(converters.configuration_to_proto, self._configurations),
            engines=map(converters.engine_to_proto, self._engines.values()),
            sessions=map(converters.session_to_proto, self._hosts.resident_sessions()),
            power_mode=self._modes.mode,
            meter="" if self._meter is None else self._meter.source,
            instance=self._instance,
            backends=sorted(installed_backends()),
            labels=self._config.labels,
            memory_limit_bytes=self._memory.limit_bytes,
            memory_enforcement=ENFORCEMENT if self._memory.limit_bytes else "",
        )

    def heartbeat_message(self) -> hub_pb2.Heartbeat:
        """Return the resident memory of agent and engine hosts, and the machine's power draw."""
        engines = self._memory.used_bytes()
        beat = hub_pb2.Heartbeat(rss_bytes=rss_bytes() + engines, engines_rss_bytes=engines)
        if self._meter is not None and (draw := self._meter.read()) is not None:
            beat.draw.watts, beat.draw.joules = draw.watts, draw.joules
        return beat

    def read_input(self, engine: EngineName, url: str) -> bytes:
        """Return the request for the input of an engine at a URL; called from other threads."""
        found = self._engines.get(engine)
        if found is None:
            raise InvalidInput(f"this worker has no engine {engine!r} any more")
        return self._inputs.read(url, found)

    def load(self, session: Session) -> None:
        """Load `session`; the result is sent as a ``SessionChanged``.

        An engine whose last load hung or crashed is tried again.
        """
        if self._inventory is not None and self._inventory.remembers_fault(session.engine):
            self._start_task(self._load_again(self._inventory, session))
        else:
            self._load_now(session)

    async def _load_again(self, inventory: Inventory, session: Session) -> None:
        await inventory.describe_again(session.engine, self._update_engine)
        self._load_now(session)

    def _load_now(self, session: Session) -> None:
        task = self._load(session)
        if task is None:
            engine = self._engines.get(session.engine)
            reason = f"it cannot be loaded here with {session.configuration}"
            if engine is not None and engine.fault:
                reason += f": {engine.fault}"
            error = EngineUnusable(reason)
            self._hub.send_session_changed(SessionChange(session, resident=False, error=error))
            return
        # The pool has logged and reported a failure.
        task.add_done_callback(_retrieve_exception)

    def unload(self, session: Session) -> None:
        """Unload `session` if it is idle."""
        self._start_task(self._hosts.unload(session))

    def place(self, placements: Sequence[hub_pb2.Placement], fetch: Fetch) -> None:
        """Fetch what is placed on this worker, and remove what is not any more."""
        self._reconciler.place(placements, fetch)

    def _find_own(self, engine: EngineName) -> Path | None:
        """Return the model of an engine in the user's model directory; None if it has none."""
        for definition in ModelDirectory(self._config.models).engines():
            if definition.name == engine:
                return definition.file
        return None

    async def _track_engines(self, inventory: Inventory) -> None:
        """Describe the discovered engines, then watch the directory for changes."""
        pending = [engine.name for engine in self._engines.values() if engine.pending]
        await inventory.describe(pending, self._update_engine)
        if not self._engines:
            _log.warning(
                "the model directory %s has no engines: add one with 'synergai engines add FILE'",
                self._config.models,
            )
        usable = sum(not engine.fault for engine in self._engines.values())
        _log.info(
            "worker %s (%s) has %d usable engines of %d",
            self._config.worker_id,
            self._config.worker_class,
            usable,
            len(self._engines),
        )
        watch = ModelDirectoryWatch(inventory, self._config.models_look_s, self._engine_changed)
        await watch.run()

    def _read_tls(self) -> ClientTls:
        config = self._config
        return ClientTls.read(config.tls_ca, config.tls_cert, config.tls_key)

    def _create_standalone(self) -> StandaloneServer:
        # Deferred: most agents serve a gateway only, and the two modules take 4 MB.
        from worker_agent.standalone.backend import AgentBackend
        from worker_agent.standalone.server import StandaloneServer

        clock = Clock()
        backend = AgentBackend(
            self._runner, self._hosts, self._engines, self._configurations, clock
        )
        return StandaloneServer(backend, clock, self._fail)

    def _fail(self, error: InternalError) -> None:
        """Stop because of an error, so that the service manager restarts the agent."""
        self._failure = error
        self.stop()

    def _load(self, session: Session) -> asyncio.Task[HostProcess] | None:
        engine = self._engines.get(session.engine)
        if engine is None or engine.fault or session.configuration not in self._configurations:
            _log.warning("cannot load %s: no such usable engine or configuration", session)
            return None
        return self._hosts.load(session)

    def _session_changed(self, change: SessionChange) -> None:
        self._hub.send_session_changed(change)
        engine = self._engines.get(change.session.engine)
        if engine is not None and isinstance(change.error, EngineUnusable):
            self._update_engine(replace(engine, fault=str(change.error)))

    def _engine_changed(self, name: EngineName, engine: Engine | None) -> None:
        """Replace an engine that has changed in the model directory; None if it was removed."""
        _log.info("engine %s was %s", name, "removed" if engine is None else "added or changed")
        if engine is None:
            fault = "it is no longer in the worker's model directory"
            engine = replace(self._engines[name], fault=fault)
        self._hosts.retire(name)
        self._update_engine(engine)
        self._reconciler.look_again()

    def _set_engine(self, engine: Engine) -> None:
        self._engines[engine.name] = engine

    def _update_engine(self, engine: Engine) -> None:
        self._set_engine(engine)
        self._hub.send_engine_changed(engine)

    def _start_task(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Start a task that ends with the agent; its failure is logged and ends the agent."""
        task = self._tasks.create_task(coroutine)
        task.add_done_callback(_log_failure)
        return task


def _retrieve_exception(load: asyncio.Task[HostProcess]) -> None:
    if not load.cancelled():
        load.exception()


def _log_failure(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a task of the agent has failed", exc_info=error)
