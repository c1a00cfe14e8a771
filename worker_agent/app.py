"""The agent: makes the engines of one machine available to a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from synergai.domain import UnusedVariant
from synergai.errors import InvalidInput
from synergai.models.descriptions import CACHE_FILE
from synergai.models.directories import ModelDirectories
from synergai.models.runtimes import OPERATORS_VARIABLE
from synergai.names import validate_name
from synergai.runtime.files import ready_file
from synergai.wire.tls import ClientTls
from worker_agent.agent_settings import TOKEN_VARIABLE
from worker_agent.cpu_affinity import split_places
from worker_agent.hosts.memory import HostMemory
from worker_agent.hosts.provider_offers import Runtimes, find_offers
from worker_agent.hosts.spare import SpareHost
from worker_agent.hub_client.identity import WorkerIdentity
from worker_agent.hub_client.latest_leader import LatestLeader
from worker_agent.hub_client.remote import RemoteHub
from worker_agent.inventory.inventory import Inventory
from worker_agent.inventory.watch import ModelDirectoryWatch
from worker_agent.peers.exchange import Exchange
from worker_agent.placements.fetched import FOLDER, FetchedEngines
from worker_agent.placements.reconciler import Reconciler
from worker_agent.power.files import MachineFiles
from worker_agent.power.manager import PowerManager
from worker_agent.power.telemetry import PowerMeter
from worker_agent.worker import LocalWorker

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from synergai.domain import Engine, EngineName
    from synergai.v1 import common_pb2
    from worker_agent.agent_settings import AgentSettings
    from worker_agent.hub_client.link import HubLink
    from worker_agent.providers.choice import Offers

_log = logging.getLogger(__name__)


class Agent:
    """A machine's agent. Use it as an async context manager and await `wait_stopped`.

    Its hub is a link within the process, or by default one over the network.
    """

    def __init__(self, config: AgentSettings, hub: HubLink | None = None) -> None:
        self._config = config
        self._instance = secrets.token_hex(8)
        if hub is None:
            self._read_tls()  # report invalid certificate files before starting anything
        # As the inventory describes them; each worker has those that it can run.
        self._engines: dict[EngineName, Engine] = {}
        self._inventory: Inventory | None = None
        self._watch: ModelDirectoryWatch | None = None
        self._exchange = Exchange(config.worker.memory_limit_bytes, config.max_message_bytes)
        self._memory = HostMemory(config.worker.memory_limit_bytes, self._exchange.held)
        self._idle = asyncio.Event()
        if config.worker.onnx_operators:  # which engine hosts inherit
            os.environ[OPERATORS_VARIABLE] = os.pathsep.join(config.worker.onnx_operators)
        # Removed from the environment, for the same reason.
        self._token = os.environ.pop(TOKEN_VARIABLE, "") if hub is None else ""
        self._link = hub
        self._main = self._create_worker(config.worker.worker_id, config.worker.memory_bytes)
        self._workers = [self._main]
        self._reconciler = Reconciler(
            FetchedEngines(config.state / FOLDER, config.worker.disk_budget),
            self._find_own,
            self._send_placed,
            self._installed,
        )
        self._stop = asyncio.Event()
        self._replacing: dict[EngineName, asyncio.Task[object]] = {}
        self._tasks = asyncio.TaskGroup()
        self._exit_stack: contextlib.AsyncExitStack

    async def __aenter__(self) -> Self:
        self._config.state.mkdir(parents=True, exist_ok=True)
        async with contextlib.AsyncExitStack() as stack:
            await self._open_peer_port()
            stack.push_async_callback(self._exchange.close)
            files = MachineFiles(self._config.worker.root)
            main = self._main
            power = await PowerManager.open(
                self._config.worker.power,
                self._config.worker.power_modes,
                files,
                main.hub.send_power_changed,
            )
            main.modes.set_power(power)
            stack.push_async_callback(main.modes.close)
            if self._link is not None and not self._memory.limit_bytes:
                # It starts while this process imports the gateway, in the cgroup of power modes.
                self._memory.spare = await SpareHost.start()
                stack.push_async_callback(self._memory.close_spare)
            offers = await find_offers(
                self._config.worker.providers, Runtimes(), self._config.state / "providers"
            )
            offers.log()
            gpus = {int(each.device) for each in offers.choices if each.details.needs_cuda}
            meter = await asyncio.to_thread(PowerMeter, files, gpus=gpus)
            stack.push_async_callback(asyncio.to_thread, meter.close)
            self._configure_workers(offers)
            # One of them only, so that energy is counted, and engines are fetched, once.
            self._workers[0].meter = meter
            self._workers[0].reconciler = self._reconciler
            for worker in self._workers:
                stack.push_async_callback(worker.hosts.close)
            self._inventory = inventory = Inventory(
                self._config.worker.models,
                self._config.state / CACHE_FILE,
                memory=self._memory,
                agent_version=self._config.worker.agent_version,
                fetched=self._config.state / FOLDER,
            )
            self._watch = watch = ModelDirectoryWatch(
                inventory,
                self._config.worker.models_look_s,
                self._engine_found,
                self._engine_changed,
            )
            for engine in (await inventory.discover()).values():
                self._set_engine(engine)
            first = {session.engine for session in self._config.worker.sessions} & set(
                self._engines
            )
            await inventory.describe(first, self._set_engine)
            # Failures are logged by the pool; the registration lists the resident sessions.
            loads = [
                worker.start_load(session)
                for session in self._config.worker.sessions
                for worker in self._workers_for(session.configuration.execution_provider)
            ]
            await asyncio.gather(*filter(None, loads), return_exceptions=True)
            await stack.enter_async_context(self._tasks)
            for worker in self._workers:
                stack.callback(worker.runner.abandon_all)
            stack.enter_context(ready_file(self._config.ready_file))
            for loop in (
                *(worker.hub.run() for worker in self._workers),
                *(worker.hosts.enforce_memory_budget() for worker in self._workers),
                self._reconciler.run(),
                self._track_engines(inventory, watch),
            ):
                stack.callback(self._start_task(loop).cancel)
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without the error, which the task group would wrap in a group.
        await self._exit_stack.aclose()

    def stop(self) -> None:
        """Start a graceful shutdown: complete outstanding work, accept no more. Idempotent."""
        self._stop.set()

    async def wait_stopped(self) -> None:
        """Wait for `stop`, then until the outstanding work is complete or ``drain_s`` is over."""
        await self._stop.wait()
        _log.info("draining")
        for worker in self._workers:
            worker.hub.send_draining()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_s):
                while not all(worker.runner.is_idle for worker in self._workers):
                    self._idle.clear()
                    await self._idle.wait()
        await asyncio.gather(*(worker.hub.flush() for worker in self._workers))

    # --- workers --------------------------------------------------------------------------------

    def _create_worker(
        self, worker_id: str, memory_bytes: int, suffix: str = "", cores: tuple[int, ...] = ()
    ) -> LocalWorker:
        """Create the machine's worker, or with a suffix that of a place or device."""
        config = self._config
        if cores:
            config = replace(config, worker=replace(config.worker, cores=cores))
        return LocalWorker(
            config,
            worker_id,
            self._instance,
            self._memory,
            self._exchange,
            self._remote_hub(suffix) if self._link is None else self._link,
            memory_bytes=memory_bytes,
            start_task=self._start_task,
            on_idle=self._idle.set,
            on_engine_fault=self._engine_failed,
            describe_again=self._describe_again,
        )

    def _remote_hub(self, suffix: str) -> RemoteHub:
        """Return the link to the gateway for a worker, which proves its own identity."""
        config = self._config
        state, token_file = config.state, config.enrolment_token_file
        if suffix:
            state = state / "workers" / suffix
            if token_file is not None:
                token_file = token_file.with_name(f"{token_file.name}.{suffix}")
        identity = WorkerIdentity(state, token_file, "" if suffix else self._token)
        leader = LatestLeader(config.state)
        hub = RemoteHub(config.gateway, config.max_message_bytes, self._read_tls, identity, leader)
        hub.check()
        return hub

    def _configure_workers(self, offers: Offers) -> None:
        """Give the machine's worker its configurations; each place and device is a worker, too."""
        config, modes = self._config.worker, self._main.modes.modes
        beside = [choice for choice in offers.choices if choice.parallel]
        here = [choice for choice in offers.choices if not choice.parallel]
        if modes and (beside or config.places):
            what, setting = (beside[0], "parallel") if beside else ("a place", "places")
            raise InvalidInput(
                f"{what} cannot run alongside others on a machine with power modes, since a "
                f'switch would disturb them: remove {setting}, or set power = "none"'
            )
        places: list[tuple[int, ...]] = []
        if config.places:
            cores = config.cores or tuple(sorted(os.sched_getaffinity(0)))
            places = split_places(config.places, cores)
        configurations = config.configurations(modes, offers)
        on_cores = len(places) or bool(configurations)
        memory_bytes = config.memory_bytes // (on_cores + len(beside) or 1)
        workers = [self._own_worker(str(n), memory_bytes, own) for n, own in enumerate(places, 1)]
        for worker, own in zip(workers, places, strict=True):
            worker.configure(replace(config, cores=own).configurations(offers=offers), here)
        if configurations and not places:
            self._main.hosts.memory_bytes = memory_bytes
            self._main.configure(configurations, here)
            workers = [self._main]
        for choice in beside:
            device = self._own_worker(choice.suffix, memory_bytes)
            device.configure(choice.configurations(config.configurations()), [choice])
            workers.append(device)
        if not workers:
            raise InvalidInput(
                "none of the execution providers can be used: "
                + "; ".join(f"{each.choice}: {each.reason}" for each in offers.refusals)
            )
        self._workers = workers

    def _own_worker(
        self, suffix: str, memory_bytes: int, cores: tuple[int, ...] = ()
    ) -> LocalWorker:
        """Create the worker of a place or device, which has an id and a secret of its own."""
        name = validate_name(f"{self._config.worker.worker_id}.{suffix}", "worker id")
        (self._config.state / "workers" / suffix).mkdir(parents=True, exist_ok=True)
        return self._create_worker(name, memory_bytes, suffix, cores)

    def _workers_for(self, provider: str) -> list[LocalWorker]:
        """Return the workers with configurations of a provider; the first one if there is none."""
        found = [
            worker
            for worker in self._workers
            if any(each.execution_provider == provider for each in worker.configurations)
        ]
        return found or self._workers[:1]

    # --- engines --------------------------------------------------------------------------------

    def _send_placed(self, placed: common_pb2.Placed) -> None:
        self._workers[0].hub.send_placed(placed)

    def _find_own(self) -> dict[EngineName, Path]:
        """Return the models of the engines in the user's model directory."""
        definitions = ModelDirectories(self._config.worker.models).own_engines()
        return {definition.name: definition.file for definition in definitions}

    def _installed(self, engine: EngineName) -> None:
        """Describe an engine that was fetched."""
        if self._watch is not None:
            self._watch.look_at(engine)

    async def _track_engines(self, inventory: Inventory, watch: ModelDirectoryWatch) -> None:
        """Describe the discovered engines, and watch the directory for changes."""
        pending = [engine.name for engine in self._engines.values() if engine.pending]
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            group.create_task(inventory.retry(self._loaded_again))
            await inventory.describe(pending, self._update_engine)
            if not self._engines:
                _log.warning(
                    "the model directory %s has no engines: add one with "
                    "'synergai engines add FILE --models %s'",
                    self._config.worker.models,
                    self._config.worker.models,
                )
            usable = sum(not engine.fault for engine in self._engines.values())
            _log.info(
                "worker %s (%s): %d of %d engines are usable",
                self._config.worker.worker_id,
                self._config.worker.worker_class,
                usable,
                len(self._engines),
            )

    async def _open_peer_port(self) -> None:
        """Open the port for other agents, if it is configured, encrypted as the gateway is."""
        config = self._config
        if not config.worker.peer_port:
            return
        if config.tls_ca is not None and config.tls_cert is None:
            raise InvalidInput(
                "--peer-port needs --tls-cert and --tls-key with --tls-ca: other agents connect to "
                "it by TLS"
            )
        await self._exchange.open(config.worker.peer_port, config.tls_cert, config.tls_key)

    def _read_tls(self) -> ClientTls:
        config = self._config
        return ClientTls.read(config.tls_ca, config.tls_cert, config.tls_key)

    def _engine_found(self, engine: Engine) -> None:
        """Tell the gateway of a new engine, for which it holds requests until it is inspected."""
        _log.info("engine %s was found, and is inspected once its files are complete", engine.name)
        self._update_engine(engine)

    def _engine_changed(self, name: EngineName, engine: Engine | None) -> None:
        """Replace an engine that has changed in the model directory; None if it was removed."""
        if (replacing := self._replacing.pop(name, None)) is not None:
            replacing.cancel()
        if engine is None:
            _log.info("engine %s was removed", name)
            fault = "it was removed from the worker"
            removed = replace(self._engines[name], fault=fault, pending=False)
            for worker in self._workers:
                worker.hosts.retire(name)
                worker.remove_engine(removed)
        elif not (engine.fault and self._keep(name, engine.fault)):
            _log.info("engine %s was added or changed", name)
            self._replacing[name] = self._start_task(self._replace(engine))
        self._reconciler.look_again()

    def _keep(self, name: EngineName, fault: str) -> bool:
        """Let the sessions of an engine serve whose changed files are faulty; return whether any.

        They run the former files.
        """
        former = self._engines.get(name)
        if former is None or former.fault:
            return False
        if not any([worker.hosts.keep(name) for worker in self._workers]):  # noqa: C419 - each one
            return False
        _log.warning("engine %s: its changed files are not used, the former ones still are", name)
        unused = [each for each in former.unused_variants if each.variant]
        self._update_engine(replace(former, unused_variants=(*unused, UnusedVariant("", fault))))
        return True

    async def _replace(self, engine: Engine) -> None:
        """Let an engine's changed files serve, once they are loaded if the former ones were."""
        await asyncio.gather(*(worker.replace_engine(engine) for worker in self._workers))
        self._replacing.pop(engine.name, None)
        self._engines[engine.name] = engine

    def _engine_failed(self, engine: Engine) -> None:
        """Take an engine out of service that cannot be loaded, until it is loaded again."""
        self._update_engine(
            replace(engine, fault=f"{engine.fault}; it is loaded again within an hour")
        )
        if self._inventory is not None:
            self._inventory.retry_later(engine.name)

    def _describe_again(self, name: EngineName) -> Coroutine[Any, Any, None] | None:
        """Return what loads an engine again whose last load failed; None if that did not."""
        inventory = self._inventory
        if inventory is None or not inventory.remembers_fault(name):
            return None
        return inventory.describe_again(name, self._loaded_again)

    def _loaded_again(self, engine: Engine) -> None:
        """Replace the description of an engine, or its files if sessions run the former ones."""
        name = engine.name
        if name in self._replacing or any(worker.hosts.keeps(name) for worker in self._workers):
            self._engine_changed(name, engine)
        else:
            self._update_engine(engine)

    def _set_engine(self, engine: Engine) -> None:
        self._engines[engine.name] = engine
        for worker in self._workers:
            worker.set_engine(engine)

    def _update_engine(self, engine: Engine) -> None:
        self._engines[engine.name] = engine
        for worker in self._workers:
            worker.update_engine(engine)

    def _start_task(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Start a task that ends with the agent; its failure is logged and ends the agent."""
        task = self._tasks.create_task(coroutine)
        task.add_done_callback(_log_failure)
        return task


def _log_failure(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a task of the agent has failed", exc_info=error)
