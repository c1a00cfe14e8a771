"""The machine's power modes in turn, for measuring in each of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from synergai.errors import Unavailable
from worker_agent.power.controller import SwitchFailed, find_mode
from worker_agent.power.selection import open_controller

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from worker_agent.power.controller import PowerController, PowerMode
    from worker_agent.power.files import Files

_log = logging.getLogger(__name__)


class ProfiledModes:
    """Puts modes in force, and in the end the one that was found. A context manager.

    Args:
        power: name of the controller; ``auto`` chooses by the board.
        wanted: names of the modes to measure in; none means all that need no reboot.
        files: the machine.

    Raises:
        InvalidInput: on construction, if there is no such controller or mode.
        NotSupported: on construction, if the machine does not have what the controller needs, or
            a wanted mode cannot be switched to.
    """

    def __init__(self, power: str, wanted: Sequence[str], files: Files) -> None:
        self._power = power
        self._files = files
        self._controller: Final[PowerController] = open_controller(power, files, wanted)
        self._found = ""
        try:
            offered = self._controller.modes()
            # Asked for by name, a mode that cannot be had is an error; else it is left out.
            names = wanted or [mode.name for mode in offered if not mode.refused]
            self.modes: tuple[PowerMode, ...] = tuple(find_mode(offered, name) for name in names)
            """Those to measure in; none on a machine without power modes."""
            if self.modes:
                self._found = self._controller.read().mode
        except BaseException:
            self._controller.close()
            raise

    def activate(self, mode: str) -> float:
        """Switch, wait until the machine has settled, and verify; return the seconds it took.

        Raises:
            SwitchFailed: the machine did not follow.
        """
        return self._controller.switch(mode).seconds

    def check(self, mode: str) -> None:
        """Check that `mode` has stayed in force.

        Raises:
            Unavailable: it has not, so that what was measured belongs to no mode.
        """
        reading = self._controller.read()
        if reading.mode != mode:
            now = f"it is {reading.mode} now" if reading.mode else reading.detail
            raise Unavailable(
                f"the power mode {mode} did not stay in force while it was measured ({now}); "
                "see to it that nobody else switches, and measure again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        try:
            self._give_back()
            self._controller.close()
        except (OSError, SwitchFailed) as error:
            _log.warning("the power mode was not given back: %s", error)

    def _give_back(self) -> None:
        if not self._found:
            return
        ours = any(mode.name == self._found for mode in self.modes)
        # A controller that was told which modes to offer knows no others.
        controller = self._controller if ours else open_controller(self._power, self._files)
        controller.switch(self._found)
