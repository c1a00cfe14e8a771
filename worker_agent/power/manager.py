"""Asynchronous access to the machine's power modes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from synergai.runtime.tasks import TaskBag
from worker_agent.power.controller import (
    PowerController,
    PowerMode,
    Reading,
    SwitchFailed,
    SwitchResult,
)
from worker_agent.power.files import MachineFiles
from worker_agent.power.selection import AUTO, open_controller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
POLL_INTERVAL_S: Final = 10.0
"""Seconds between two readings, which detect switches made by other programs."""

_log = logging.getLogger(__name__)


class PowerManager:
    """Lists, switches and monitors power modes without blocking the loop. Created by `open`.

    One thread runs all controller calls, so that switches never overlap.
    """

    def __init__(
        self,
        controller: PowerController,
        thread: ThreadPoolExecutor,
        on_change: Callable[[str, float], object],
    ) -> None:
        self.modes: tuple[PowerMode, ...] = ()
        self.reading = Reading()
        self._controller = controller
        self._thread = thread
        self._on_change = on_change
        self._switch_s = 0.0
        self._tasks = TaskBag()

    @classmethod
    async def open(
        cls,
        name: str = AUTO,
        modes: Sequence[str] = (),
        files: MachineFiles | None = None,
        on_change: Callable[[str, float], object] = lambda _mode, _switch_s: None,
    ) -> PowerManager:
        """Open the controller, list the modes and read the one in force.

        `on_change` is called with each new mode in force (empty if unknown) and the seconds that
        the switch took; 0 if another program switched.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="power")
        loop = asyncio.get_running_loop()
        try:
            controller = await loop.run_in_executor(
                thread, open_controller, name, files or MachineFiles(), modes
            )
            power = cls(controller, thread, on_change)
            power.modes = tuple(
                mode for mode in await power._call(controller.modes) if not mode.refused
            )
        except BaseException:
            thread.shutdown(wait=False)
            raise
        if power.modes:
            power._tasks.start(power._poll())
        return power

    @property
    def mode(self) -> str:
        """The mode in force at the latest reading; empty if unknown."""
        return self.reading.mode

    async def ensure(self, mode: str) -> float:
        """Switch to `mode` unless it is in force; return the seconds that the switch took.

        An empty `mode` accepts any. A started switch completes, and `reading` is updated, even if
        the caller is cancelled.
        """
        if not mode or mode == self.mode:
            return 0.0
        switched = await self._call(lambda: self._switch(mode))
        _log.info("power mode %s is in force after %.2f s", switched.mode, switched.seconds)
        return switched.seconds

    async def refresh(self) -> Reading:
        await self._call(lambda: None)
        return self.reading

    async def close(self) -> None:
        await self._tasks.close()
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._controller.close)
        except (OSError, SwitchFailed) as error:
            _log.warning("the initial power mode was not restored: %s", error)
        self._thread.shutdown(wait=False)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            before = self.reading
            now = await self.refresh()
            if now != before:
                _log.warning(
                    "another program changed the power mode from %s to %s",
                    before.mode or "none",
                    now.mode or f"none: {now.detail}",
                )

    async def _call(self, function: Callable[[], T]) -> T:
        """Run `function` in the thread; update `reading` before returning."""
        loop = asyncio.get_running_loop()

        def call() -> T:
            try:
                return function()
            finally:
                reading = self._controller.read()
                seconds, self._switch_s = self._switch_s, 0.0
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._record, reading, seconds)

        return await asyncio.shield(loop.run_in_executor(self._thread, call))

    def _switch(self, mode: str) -> SwitchResult:
        """Switch, in the thread; the next reading reports the duration."""
        switched = self._controller.switch(mode)
        self._switch_s = switched.seconds
        return switched

    def _record(self, reading: Reading, switch_s: float) -> None:
        before, self.reading = self.reading, reading
        if reading.mode != before.mode:
            self._on_change(reading.mode, switch_s)
