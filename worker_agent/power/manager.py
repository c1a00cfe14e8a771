"""The machine's power mode, from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from worker_agent.power.controller import PowerMode, Reading, SwitchFailed
from worker_agent.power.files import Files
from worker_agent.power.selection import AUTO, open_controller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from worker_agent.power.controller import PowerController, Switch

T = TypeVar("T")
LOOK_S: Final = 10.0
"""Somebody else may switch the machine; it is looked at this often, in seconds."""

_log = logging.getLogger(__name__)


class Power:
    """Lists, switches and watches power modes without holding up the loop. Made by `open`.

    One thread does all of it, so that switches never overlap.

    Attributes:
        modes: those that can be switched to while the machine runs; maybe none.
        reading: what was read back last.
    """

    def __init__(
        self,
        controller: PowerController,
        thread: ThreadPoolExecutor,
        when_changed: Callable[[str, float], object],
    ) -> None:
        self.modes: tuple[PowerMode, ...] = ()
        self.reading = Reading()
        self._controller = controller
        self._thread = thread
        self._when_changed = when_changed
        self._switch_s = 0.0
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        name: str = AUTO,
        modes: Sequence[str] = (),
        files: Files | None = None,
        when_changed: Callable[[str, float], object] = lambda _mode, _switch_s: None,
    ) -> Power:
        """Find out what the machine can do, and what it is in.

        Args:
            name: of the controller; ``auto`` chooses by the board.
            modes: names of the modes to offer; none means all that can be switched to.
            files: the machine.
            when_changed: told each mode that comes into force, and what the switch to it took; 0
                seconds if somebody else switched. An empty mode is none that is known.

        Raises:
            InvalidInput: there is no controller or mode of such a name.
            NotSupported: the machine does not have what the controller needs.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="power")
        loop = asyncio.get_running_loop()
        try:
            controller = await loop.run_in_executor(
                thread, open_controller, name, files or Files(), modes
            )
            power = cls(controller, thread, when_changed)
            power.modes = tuple(
                mode for mode in await power._call(controller.modes) if not mode.refused
            )
        except BaseException:
            thread.shutdown(wait=False)
            raise
        if power.modes:
            power._watch = asyncio.create_task(power._keep_looking())
        return power

    @property
    def mode(self) -> str:
        """The mode in force, as it was read back last; empty if it is none."""
        return self.reading.mode

    async def ensure(self, mode: str) -> float:
        """Put `mode` in force, if it is another one; return the seconds that this took.

        An empty `mode` means whatever there is. A switch that was begun is carried through even
        if the caller is cancelled; what is in force afterwards is known in any case.

        Raises:
            InvalidInput: there is no such mode.
            ModeRefused: it needs a reboot.
            SwitchFailed: the machine did not follow.
        """
        if not mode or mode == self.mode:
            return 0.0
        switched = await self._call(lambda: self._switch(mode))
        _log.info("power mode %s is in force after %.2f s", switched.mode, switched.seconds)
        return switched.seconds

    async def look(self) -> Reading:
        """Read back what is in force now."""
        await self._call(lambda: None)
        return self.reading

    async def close(self) -> None:
        """Stop watching, and leave the machine in a sane state."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._controller.close)
        except (OSError, SwitchFailed) as error:
            _log.warning("the power mode was not given back: %s", error)
        self._thread.shutdown(wait=False)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            before = self.reading
            now = await self.look()
            if now != before:
                _log.warning(
                    "the power mode was %s and is %s now; somebody else changed it",
                    before.mode or "none",
                    now.mode or f"none: {now.detail}",
                )

    async def _call(self, function: Callable[[], T]) -> T:
        """Run `function` in the thread; what is in force after it is known before this returns."""
        loop = asyncio.get_running_loop()

        def call() -> T:
            try:
                return function()
            finally:
                reading = self._controller.read()
                seconds, self._switch_s = self._switch_s, 0.0
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(self._take_in, reading, seconds)

        return await asyncio.shield(loop.run_in_executor(self._thread, call))

    def _switch(self, mode: str) -> Switch:
        """Switch, in the thread; what it took is told with the reading that follows."""
        switched = self._controller.switch(mode)
        self._switch_s = switched.seconds
        return switched

    def _take_in(self, reading: Reading, switch_s: float) -> None:
        before, self.reading = self.reading, reading
        if reading.mode != before.mode:
            self._when_changed(reading.mode, switch_s)
