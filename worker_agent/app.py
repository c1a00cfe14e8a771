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
from worker_agent.machine import open_machine
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

    worker: LocalWorker
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
    hub = HubClient(link or open_link(config, token))
    config.state.mkdir(parents=True, exist_ok=True)
    if link is None:
        _lock_state(config.state, stack)
    machine = await open_machine(config, hub.send_power_changed, stack)
    fetched = config.state / FOLDER
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
        hub.send_placed,
        watch.look_at,
    )
    engines = ServedEngines(settings, inventory, watch, reconciler.look_again)
    worker = LocalWorker(
        config,
        machine,
        hub,
        on_engine_fault=engines.load_failed,
        describe_again=engines.describe_again,
        reconciler=reconciler,
    )
    stack.push_async_callback(worker.close)
    engines.set_worker(worker)
    stack.push_async_callback(engines.close)  # before the hosts that it loads
    return AgentParts(worker, engines, reconciler)


def _lock_state(state: Path, stack: AsyncExitStack) -> None:
    """Keep the state directory, whose engines are one agent's, until `stack` closes."""
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
        self._worker: LocalWorker
        self._engines: ServedEngines

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            parts = await build_parts(self._config, self._link, stack)
            self._worker, self._engines = parts.worker, parts.engines
            pinned = self._config.worker.sessions
            await parts.engines.discover(session.engine for session in pinned)
            # Failures are logged by the pool; the registration lists the resident sessions.
            loads = [parts.worker.start_load(session) for session in pinned]
            started = (load for load in loads if isinstance(load, asyncio.Task))
            await asyncio.gather(*started, return_exceptions=True)
            # The failure of a loop is a bug, and ends the agent.
            loops = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(parts.worker.runner.abandon_all)
            stack.enter_context(ready_file(self._config.ready_file))
            for loop in (
                parts.worker.hub.run(parts.worker),
                parts.worker.hosts.enforce_memory_budget(),
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
        """Whether the worker gets work from the gateway, and for all engines of this machine."""
        return self._engines.described and self._worker.hub.connected

    def stop(self) -> None:
        """Start a graceful shutdown: complete outstanding work, accept no more. Idempotent."""
        self._stop.set()

    async def wait_stopped(self) -> None:
        """Wait for `stop`, then until the outstanding work is complete or ``drain_s`` is over."""
        await self._stop.wait()
        _log.info("draining")
        await self._worker.drain(self._config.drain_s)
