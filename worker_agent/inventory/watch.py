"""Looks at the model directory from time to time, and tells what has changed in it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.domain import Engine, EngineName
    from worker_agent.inventory.inventory import Inventory

_log = logging.getLogger(__name__)


class ModelDirectoryWatch:
    """Tells of engines that came, changed or went while the agent runs.

    Args:
        inventory: the engines, which have been described once.
        interval_s: between two looks.
        on_change: told of each engine that is not what it was; None in place of one that has
            gone.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        inventory: Inventory,
        interval_s: float,
        on_change: Callable[[EngineName, Engine | None], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inventory = inventory
        self._interval_s = interval_s
        self._on_change = on_change
        self._sleep = sleep

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._sleep(self._interval_s)
            try:
                changed = await self._inventory.changed()
            except (SynergaiError, OSError) as error:
                # A directory that is not there now may be so again.
                _log.warning("cannot look for changed engines: %s", error)
                continue
            for name, engine in changed.items():
                self._on_change(name, engine)
