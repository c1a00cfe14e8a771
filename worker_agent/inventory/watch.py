"""Periodic check of the model directory for changed engines."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from synergai.errors import SynergaiError
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from synergai.domain import Engine, EngineName
    from worker_agent.inventory.inventory import Inventory

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
"""Seconds between two looks at the folders only, which cost little."""
_SETTLE_S: Final = 2.0
"""Seconds without a change after which an engine is complete."""


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
