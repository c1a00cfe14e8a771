"""Power modes to measure in, and the switch between them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from synergai.errors import Unavailable
from worker_agent.power.controller import SwitchFailed, find_mode
from worker_agent.power.selection import open_controller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.controller import PowerController, PowerMode
    from worker_agent.power.files import MachineFiles

_log = logging.getLogger(__name__)


class ProfiledModes:
    """Switches power modes and restores the original mode on exit; a context manager.

    Args:
        power: name of the controller; ``auto`` selects it by the board.
        wanted: names of the modes to measure in; empty for all that need no reboot.

    Attributes:
        modes: the modes to measure in; empty on a machine without power modes.
        refused: the modes that were not asked for and cannot be switched to.
    """

    def __init__(self, power: str, wanted: Sequence[str], files: MachineFiles) -> None:
        self._power = power
        self._files = files
        self._controller: Final[PowerController] = open_controller(power, files, wanted)
        self._original = ""
        try:
            offered = self._controller.modes()
            # A mode that cannot be switched to is skipped unless named explicitly.
            names = wanted or [mode.name for mode in offered if not mode.refused]
            self.modes: tuple[PowerMode, ...] = tuple(find_mode(offered, name) for name in names)
            self.refused = tuple(mode for mode in offered if mode.refused and not wanted)
            if self.modes:
                self._original = self._controller.read().mode
        except BaseException:
            self._controller.close()
            raise

    def activate(self, mode: str) -> float:
        """Switch to `mode`, wait until the machine has settled, and verify.

        Returns:
            Duration of the switch in seconds.
        """
        return self._controller.switch(mode).seconds

    def check(self, mode: str) -> None:
        """Check that `mode` is still active."""
        reading = self._controller.read()
        if reading.mode != mode:
            now = f"it is now {reading.mode}" if reading.mode else reading.detail
            raise Unavailable(
                f"the power mode changed from {mode} during the measurement ({now}); "
                "stop other programs that switch modes, and measure again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
            self._controller.close()
        except (OSError, SwitchFailed) as error:
            _log.warning("cannot restore the power mode: %s", error)

    def _restore(self) -> None:
        if not self._original:
            return
        known = any(mode.name == self._original for mode in self.modes)
        # A controller opened with wanted modes knows no others.
        controller = self._controller if known else open_controller(self._power, self._files)
        controller.switch(self._original)
