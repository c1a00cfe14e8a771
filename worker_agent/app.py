"""The agent: makes the engines of one machine available to a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from synergai.errors import Unavailable
from synergai.models.descriptions import CACHE_FILE
from synergai.models.directories import ModelDirectories
from synergai.runtime.files import lock_directory, ready_file
from worker_agent.agent_settings import TOKEN_VARIABLE, AgentSettings, WorkerSettings
from worker_agent.hub_client.client import HubClient, HubLink
from worker_agent.hub_client.remote import open_link
from worker_agent.inventory import Inventory
from worker_agent.machine import open_machine, plan_workers
from worker_agent.placements.fetched import FOLDER, FetchedEngines
from worker_agent.placements.reconciler import Reconciler
from worker_agent.providers import OPERATORS_VARIABLE
from worker_agent.served_engines import ModelDirectoryWatch, ServedEngines
from worker_agent.worker import LocalWorker

if TYPE_CHECKING:
    from contextlib import AsyncExitStack
    from pathlib import Path

    from synergai.domain import EngineName

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentParts:
    """The parts of an agent."""

    workers: tuple[LocalWorker, ...]
    engines: ServedEngines
    reconciler: Reconciler


async def build_parts(
    config: AgentSettings, link: HubLink | None, stack: AsyncExitStack
) -> AgentParts:
    """Build the parts of an agent, one after the other; closing `stack` closes them.

    Args:
        link: the link to a gateway in this process; None for one over the network.
    """
    settings = config.worker
    if settings.onnx_operators:  # which engine hosts inherit
        os.environ[OPERATORS_VARIABLE] = os.pathsep.join(settings.onnx_operators)
    # Removed from the environment, for the same reason.
    token = os.environ.pop(TOKEN_VARIABLE, "") if link is None else ""
    main = HubClient(link or open_link(config, token=token))
    config.state.mkdir(parents=True, exist_ok=True)
    if link is None:
        _lock_state(config.state, stack)
    machine = await open_machine(config, main.send_power_changed, stack)
    power, fetched = machine.power, config.state / FOLDER
    # The mode in force comes last, so that it is preferred among modes of the same speed.
    modes = sorted(power.modes, key=lambda mode: mode.name == power.mode)
    plans = plan_workers(settings, machine.cores, modes, machine.offers)
    hubs = [
        HubClient(link or open_link(config, plan.suffix)) if plan.suffix else main for plan in plans
    ]
    inventory = Inventory(
        settings.models,
        config.state / CACHE_FILE,
        memory=machine.memory,
        fetched=fetched,
    )
    watch = ModelDirectoryWatch(inventory, settings.models_look_s)
    reconciler = Reconciler(
        FetchedEngines(fetched, settings.disk_budget),
        lambda: _own_engines(settings),
        hubs[0].send_placed,
        watch.look_at,
    )
    engines = ServedEngines(settings, inventory, watch, reconciler.look_again)
    workers: list[LocalWorker] = []
    for plan, hub in zip(plans, hubs, strict=True):
        worker = LocalWorker(
            config,
            plan,
            machine,
            hub,
            on_engine_fault=engines.load_failed,
            describe_again=engines.describe_again,
            # One of them only, so that energy is counted, and engines are fetched, once.
            reconciler=None if workers else reconciler,
        )
        stack.push_async_callback(worker.close)
        engines.add_worker(worker)
        workers.append(worker)
    stack.push_async_callback(engines.close)  # before the hosts that it loads
    return AgentParts(tuple(workers), engines, reconciler)


def _lock_state(state: Path, stack: AsyncExitStack) -> None:
    """Keep the state directory, whose secret and engines are one agent's, until `stack` closes."""
    lock = lock_directory(state, "agent.lock")
    if lock is None:
        raise Unavailable(
            f"another agent uses the state directory {state}: give each agent of a machine its own "
            "(--state)"
        )
    stack.callback(os.close, lock)


def _own_engines(settings: WorkerSettings) -> dict[EngineName, Path]:
    definitions = ModelDirectories(settings.models).own_engines()
    return {definition.name: definition.file for definition in definitions}


class Agent:
    """A machine's agent. Use it as an async context manager and await `wait_stopped`.

    Its hub is a link within the process, or by default one over the network.
    """

    def __init__(self, config: AgentSettings, hub: HubLink | None = None) -> None:
        self._config = config
        self._link = hub
        self._stop = asyncio.Event()
        self._exit_stack: contextlib.AsyncExitStack
        self._workers: tuple[LocalWorker, ...]
        self._engines: ServedEngines

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            parts = await build_parts(self._config, self._link, stack)
            self._workers, self._engines = parts.workers, parts.engines
            pinned = self._config.worker.sessions
            await parts.engines.discover(session.engine for session in pinned)
            # Failures are logged by the pool; the registration lists the resident sessions.
            loads = [
                worker.start_load(session)
                for session in pinned
                for worker in self._workers_for(session.configuration.execution_provider)
            ]
            started = (load for load in loads if isinstance(load, asyncio.Task))
            await asyncio.gather(*started, return_exceptions=True)
            # The failure of a loop is a bug, and ends the agent.
            loops = await stack.enter_async_context(asyncio.TaskGroup())
            for worker in self._workers:
                stack.callback(worker.runner.abandon_all)
            stack.enter_context(ready_file(self._config.ready_file))
            for loop in (
                *(worker.hub.run(worker) for worker in self._workers),
                *(worker.hosts.enforce_memory_budget() for worker in self._workers),
                parts.reconciler.run(),
                parts.engines.track(),
            ):
                stack.callback(loops.create_task(loop).cancel)
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without the error, which the task group would wrap in a group.
        await self._exit_stack.aclose()

    @property
    def ready(self) -> bool:
        """Whether all workers get work from the gateway, and for all engines of this machine."""
        return self._engines.described and all(worker.hub.connected for worker in self._workers)

    def stop(self) -> None:
        """Start a graceful shutdown: complete outstanding work, accept no more. Idempotent."""
        self._stop.set()

    async def wait_stopped(self) -> None:
        """Wait for `stop`, then until the outstanding work is complete or ``drain_s`` is over."""
        await self._stop.wait()
        _log.info("draining")
        await asyncio.gather(*(worker.drain(self._config.drain_s) for worker in self._workers))

    def _workers_for(self, provider: str) -> list[LocalWorker]:
        """Return the workers with configurations of a provider; the first one if there is none."""
        found = [
            worker
            for worker in self._workers
            if any(each.execution_provider == provider for each in worker.configurations)
        ]
        return found or [self._workers[0]]
