"""Periodic check of the model directory for changed engines."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from synergai.domain import Engine, EngineName
    from worker_agent.inventory.inventory import Inventory

_log = logging.getLogger(__name__)


class ModelDirectoryWatch:
    """Reports engines that are added, changed or removed while the agent runs.

    Args:
        inventory: the inventory, whose ``engines()`` has been called.
        interval_s: seconds between two checks.
        on_change: called with the name and new description of each changed engine; the description
            of a removed engine is None.
        sleep: sleeps for the given number of seconds.
    """

    def __init__(
        self,
        inventory: Inventory,
        interval_s: float,
        on_change: Callable[[EngineName, Engine | None], None],
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._inventory = inventory
        self._interval_s = interval_s
        self._on_change = on_change
        self._sleep = sleep
        self._complete: set[EngineName] = set()
        self._wake = asyncio.Event()

    def look_at(self, name: EngineName) -> None:
        """Look at once, for an engine whose files are complete."""
        self._complete.add(name)
        self._wake.set()

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await self._pause()
            complete, self._complete = self._complete, set()
            try:
                changed = await self._inventory.poll_changes(complete)
            except (SynergaiError, OSError) as error:
                # The directory may only be missing temporarily.
                _log.warning("cannot check the model directory for changes: %s", error)
                continue
            for name, engine in changed.items():
                self._on_change(name, engine)

    async def _pause(self) -> None:
        """Wait for the interval, or until there is something to look at."""
        waits = [
            asyncio.ensure_future(self._sleep(self._interval_s)),
            asyncio.ensure_future(self._wake.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.wait(waits)
        self._wake.clear()
