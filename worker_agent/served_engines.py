"""The machine's engines: found in the model directory, run by its worker, known to the gateway."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.domain import REMOVED, UnusedVariant
from synergai.errors import SynergaiError
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from synergai.domain import Engine, EngineName
    from worker_agent.agent_settings import WorkerSettings
    from worker_agent.inventory import Inventory
    from worker_agent.worker import LocalWorker

_LOOK_S: Final = 0.5
"""Seconds between two looks at the folders only, which cost little."""
_SETTLE_S: Final = 2.0
"""Seconds without a change after which an engine is complete."""

_log = logging.getLogger(__name__)


class ModelDirectoryWatch:
    """Reports engines that are added, changed or removed while the agent runs.

    All files are checked at an interval; new and removed folders are found earlier. An engine is
    removed once two checks miss it, since its folder may be replaced; its description is None.
    """

    def __init__(
        self,
        inventory: Inventory,
        interval_s: float,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._inventory = inventory
        self._interval_s = interval_s
        self._sleep = sleep
        self._complete: set[EngineName] = set()
        self._wake = asyncio.Event()

    def look_at(self, name: EngineName) -> None:
        """Look at once, for an engine whose files are complete."""
        self._complete.add(name)
        self._wake.set()

    async def run(
        self,
        on_found: Callable[[Engine], None],
        on_change: Callable[[EngineName, Engine | None], None],
    ) -> None:
        """Check periodically until cancelled."""

        def report(engine: Engine) -> None:
            on_change(engine.name, engine)

        waited_s = 0.0
        async with asyncio.TaskGroup() as inspections:
            while True:
                waited_s += await self._pause()
                if not self._complete and not await self._is_due(waited_s):
                    continue
                waited_s = 0.0
                complete, self._complete = self._complete, set()
                try:
                    changes = await self._inventory.find_changes(complete, on_found)
                except (SynergaiError, OSError) as error:
                    # The directory may only be missing temporarily.
                    _log.warning("cannot check the model directory for changes: %s", error)
                    continue
                for name in changes.removed:
                    on_change(name, None)
                if changes.changed:
                    # Concurrently with further looks: it takes a minute if a load hangs.
                    inspections.create_task(self._inventory.describe(changes.changed, report))

    async def _is_due(self, waited_s: float) -> bool:
        """Return whether to check all files, ``waited_s`` after the last check."""
        if waited_s >= self._interval_s:
            return True
        if self._inventory.is_settling:
            return waited_s >= _SETTLE_S
        return await self._inventory.has_other_folders()

    async def _pause(self) -> float:
        """Wait until the next look, or until there is something to look at; return the seconds."""
        look_s = min(self._interval_s, _LOOK_S)
        async with TaskBag() as tasks:
            waits = [tasks.start_awaited(self._sleep(look_s)), tasks.start(self._wake.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        self._wake.clear()
        return look_s


class ServedEngines:
    """Passes the engines of the inventory on to the worker, and replaces those that change.

    `on_changed` is called when an engine of the model directory was changed or removed.

    Attributes:
        described: whether all engines are that there were at the start.
    """

    described = False

    def __init__(
        self,
        settings: WorkerSettings,
        inventory: Inventory,
        watch: ModelDirectoryWatch,
        on_changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._inventory = inventory
        self._watch = watch
        self._on_changed = on_changed
        self._worker: LocalWorker
        # As the inventory describes them; the worker has those that it can run.
        self._engines: dict[EngineName, Engine] = {}
        self._replacing: dict[EngineName, asyncio.Task[None]] = {}
        self._tasks = TaskBag()

    def set_worker(self, worker: LocalWorker) -> None:
        self._worker = worker

    async def discover(self, first: Iterable[EngineName]) -> None:
        """Find all engines, and describe the `first` ones; the others are pending."""
        for engine in (await self._inventory.discover()).values():
            self._set_engine(engine)
        await self._inventory.describe(set(first) & set(self._engines), self._set_engine)

    async def track(self) -> None:
        """Describe the discovered engines, and watch the directory for changes."""
        pending = [engine.name for engine in self._engines.values() if engine.pending]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run(self._engine_found, self._engine_changed))
            group.create_task(self._inventory.retry(self._loaded_again))
            await self._inventory.describe(pending, self._update_engine)
            self.described = True
            self._log_usable()

    def load_failed(self, engine: Engine) -> None:
        """Take an engine out of service that cannot be loaded, until it is loaded again."""
        self._update_engine(
            replace(engine, fault=f"{engine.fault}; it is loaded again within an hour")
        )
        self._inventory.retry_later(engine.name)

    async def describe_again(self, name: EngineName) -> None:
        """Load an engine again whose last load failed."""
        await self._inventory.describe_again(name, self._loaded_again)

    async def close(self) -> None:
        """Stop replacing engines."""
        await self._tasks.close()

    def _log_usable(self) -> None:
        settings = self._settings
        if not self._engines:
            _log.warning(
                "the model directory %s has no engines: add one with "
                "'synergai engines add FILE --models %s'",
                settings.models,
                settings.models,
            )
        usable = sum(not engine.fault for engine in self._engines.values())
        _log.info(
            "worker %s (%s): %d of %d engines are usable",
            settings.worker_id,
            settings.worker_class,
            usable,
            len(self._engines),
        )

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
            former = self._engines[name]
            removed = replace(former, fault=REMOVED, pending=False, too_large=False)
            self._worker.hosts.retire(name)
            self._worker.remove_engine(removed)
        elif not (engine.fault and self._keep(name, engine.fault)):
            _log.info("engine %s was added or changed", name)
            self._replacing[name] = self._tasks.start(self._replace(engine))
        self._on_changed()

    def _keep(self, name: EngineName, fault: str) -> bool:
        """Let the sessions of an engine serve whose changed files are faulty; return whether any.

        They run the former files.
        """
        former = self._engines.get(name)
        if former is None or former.fault:
            return False
        if not self._worker.hosts.keep(name):
            return False
        _log.warning("engine %s: its changed files are not used, the former ones still are", name)
        unused = [each for each in former.unused_variants if each.variant]
        self._update_engine(replace(former, unused_variants=(*unused, UnusedVariant("", fault))))
        return True

    async def _replace(self, engine: Engine) -> None:
        """Let an engine's changed files serve, once they are loaded if the former ones were."""
        await self._worker.replace_engine(engine)
        self._replacing.pop(engine.name, None)
        self._engines[engine.name] = engine

    def _loaded_again(self, engine: Engine) -> None:
        """Replace the description of an engine, or its files if sessions run the former ones."""
        name = engine.name
        if name in self._replacing or self._worker.hosts.keeps(name):
            self._engine_changed(name, engine)
        else:
            self._update_engine(engine)

    def _set_engine(self, engine: Engine) -> None:
        self._engines[engine.name] = engine
        self._worker.set_engine(engine)

    def _update_engine(self, engine: Engine) -> None:
        self._engines[engine.name] = engine
        self._worker.update_engine(engine)
