"""Loads engines that are deployed, on all of their workers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.hub.model_control import LOAD_WITHIN_S
from synergai.domain import WorkerId
from synergai.errors import DeadlineExceeded, SynergaiError, Unavailable
from synergai.names import stage_name
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from gateway.fleet.worker import ConnectedWorker
    from synergai.core.routes.deployment import Stages
    from synergai.domain import EngineName

_log = logging.getLogger(__name__)


class Loading:
    """The engines that are loaded as they are wanted, or are being loaded.

    Args:
        workers: those of the fleet at any time.
        load: loads an engine on some of the workers that have it, or without any on all; returns
            when the first one is ready.
        on_loaded: called with an engine and why it cannot be loaded, or an empty reason.
    """

    def __init__(
        self,
        workers: Mapping[WorkerId, ConnectedWorker],
        load: Callable[[EngineName, Collection[str]], Awaitable[None]],
        on_loaded: Callable[[EngineName, str], object],
    ) -> None:
        self._workers = workers
        self._load = load
        self._on_loaded = on_loaded
        self._loaded: dict[EngineName, Stages] = {}
        self._under_way: dict[EngineName, tuple[Stages, asyncio.Task[None]]] = {}
        self._tasks = TaskBag()

    def __contains__(self, engine: object) -> bool:
        """Whether an engine has been loaded as it was wanted last."""
        return engine in self._loaded

    def has(self, engine: EngineName, stages: Stages) -> bool:
        """Return whether the stages of an engine are loaded; without any, the whole engine."""
        return self._loaded.get(engine) == stages

    def forget(self, engine: EngineName) -> None:
        """Load an engine again when it can run again."""
        self._loaded.pop(engine, None)
        _, task = self._under_way.pop(engine, (None, None))
        if task is not None:
            task.cancel()

    def start(self, engine: EngineName, stages: Stages) -> None:
        """Load the stages of an engine, or the whole engine, instead of what is under way."""
        before, task = self._under_way.get(engine, (None, None))
        if task is not None and not task.done():
            if before == stages:
                return
            task.cancel()
        self._under_way[engine] = stages, self._tasks.start(self._load_all(engine, stages))

    async def wait(self) -> None:
        """Wait until all that is under way has ended."""
        await self._tasks.wait()

    async def close(self) -> None:
        """Stop to load engines."""
        await self._tasks.close()

    async def _load_all(self, engine: EngineName, stages: Stages) -> None:
        fault = ""
        try:
            async with asyncio.TaskGroup() as group:  # most are on different workers
                for stage, workers in stages.items():
                    group.create_task(self._load_stage(stage_name(engine, *stage), workers))
            if not stages:
                await self._load(engine, ())
        except* SynergaiError as errors:
            fault = str(errors.exceptions[0])
        if not fault:
            self._loaded[engine] = stages
            _log.info("engine %s runs %s", engine, "in stages" if stages else "whole")
        self._on_loaded(engine, fault)

    async def _load_stage(self, stage: EngineName, workers: frozenset[str]) -> None:
        """Load a stage on all of its workers, some of which may have it already.

        Workers that fail, or evict the stage meanwhile, are asked again.
        """
        try:
            async with asyncio.timeout(LOAD_WITHIN_S):
                await self._load(stage, workers)
                while lacking := self._lacking(stage, workers):
                    await self._load(stage, lacking)
        except (TimeoutError, DeadlineExceeded):
            where = ", ".join(self._lacking(stage, workers))
            raise Unavailable(
                f"stage {stage} was not loaded on {where} within {LOAD_WITHIN_S:g} s"
            ) from None

    def _lacking(self, stage: EngineName, workers: frozenset[str]) -> list[str]:
        """Return the workers that can load a stage, and have not."""
        return [
            each
            for each in sorted(workers)
            if (worker := self._workers.get(WorkerId(each))) is not None
            and not worker.draining
            and stage in worker.usable_engines
            and worker.usable(stage)
            and all(session.engine != stage for session in worker.sessions)
        ]
