"""Interface of power mode controllers, and the switch that they share.

Controllers are synchronous: writes to sysfs block inside the kernel, where asyncio cannot help,
and the privileged helper uses them without an event loop. The agent calls them from a dedicated
thread (``worker_agent.power.manager``).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from synergai.errors import InvalidInput, NotSupported, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNCAPPED_MHZ: Final = 10_000.0
"""A mode without a cap is faster than those with one."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PowerMode:
    """A power mode of the machine.

    Attributes:
        max_mhz: CPU clock cap; 0 means none.
        budget_w: design power limit of the board in watts; 0 means none or unknown.
        memory_mhz: memory clock cap; 0 means none or unknown.
        share: share of its cores' time that may be used, 0 to 1.
        refused: why the mode cannot be switched to at run time; empty if it can.
    """

    name: str
    cores: int
    max_mhz: float = 0.0
    budget_w: float = 0.0
    memory_mhz: float = 0.0
    share: float = 1.0
    number: int | None = None
    refused: str = ""

    @property
    def speed(self) -> tuple[float, float]:
        """Key that orders modes by speed: cores times clock, then the power limit."""
        clock_mhz = self.max_mhz or _UNCAPPED_MHZ
        return self.cores * self.share * clock_mhz, self.budget_w


@dataclass(frozen=True)
class Reading:
    """The machine's mode, read back from its own files."""

    mode: str = ""
    detail: str = ""


@dataclass(frozen=True)
class SwitchResult:
    """A switch that was verified by reading back.

    Attributes:
        seconds: duration until the machine had settled; 0 if the mode was already in force.
    """

    mode: str
    seconds: float


class ModeRefused(NotSupported):
    """The mode exists, but cannot be switched to at run time."""


class SwitchFailed(Unavailable):
    """The machine did not reach the requested mode; `reading` is the one read back afterwards."""

    def __init__(self, message: str, reading: Reading) -> None:
        super().__init__(message)
        self.reading = reading


class PowerController(Protocol):
    """Lists, switches and reads back the power modes of a machine."""

    def modes(self) -> Sequence[PowerMode]:
        """Return all modes, including those that cannot be switched to at run time.

        Raises:
            NotSupported: the machine's description of its modes cannot be read.
        """

    def read(self) -> Reading:
        """Read the mode in force from the machine's own files."""

    def switch(self, mode: str) -> SwitchResult:
        """Switch to `mode`, wait until the machine has settled, and verify.

        Raises:
            InvalidInput: the mode does not exist.
            ModeRefused: the mode needs a reboot, or missing permissions.
            SwitchFailed: the machine is in another mode; see the error's `reading`.
        """

    def close(self) -> None:
        """Leave the machine in a usable state."""


def find_mode(modes: Sequence[PowerMode], name: str) -> PowerMode:
    """Return the mode with this name or number."""
    for mode in modes:
        if name == mode.name or (mode.number is not None and name == str(mode.number)):
            if mode.refused:
                raise ModeRefused(f"power mode {mode.name}: {mode.refused}")
            return mode
    known = ", ".join(mode.name for mode in modes) or "none"
    raise InvalidInput(f"there is no power mode {name!r}; this machine has: {known}")


def select_modes(modes: Sequence[PowerMode], names: Sequence[str]) -> tuple[PowerMode, ...]:
    """Return the modes listed in `names`, or all if that is empty."""
    known = {mode.name for mode in modes}
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"there is no power mode {name!r}; this machine has: {', '.join(sorted(known))}"
            )
    return tuple(mode for mode in modes if not names or mode.name in names)


# Only the reading decides on success: a program may report an error after a complete switch, or
# success without any effect.


@dataclass(frozen=True)
class SwitchTiming:
    """Timing of a switch, in seconds.

    Attributes:
        settle: duration for which the reading must remain the wanted mode.
        timeout: maximum wait for the wanted mode.
    """

    settle: float = 1.0
    timeout: float = 10.0
    interval: float = 0.2
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def switch(
    mode: str, *, read: Callable[[], Reading], apply: Callable[[str], str], timing: SwitchTiming
) -> SwitchResult:
    """Switch to `mode`; if the machine ends in no known mode, switch back to the previous one.

    A machine that ends in another valid mode is left there: another program chose it. `apply`
    returns an error message, or an empty string.
    """
    started = timing.clock()
    before = read()
    if before.mode == mode:
        return SwitchResult(mode, 0.0)
    failure = apply(mode)
    # After an error nothing more will happen, so do not wait for the mode.
    reading = _settle(mode, read, replace(timing, timeout=0.0) if failure else timing)
    if reading.mode == mode:
        if failure:
            _log.warning("power mode %s is in force in spite of an error: %s", mode, failure)
        return SwitchResult(mode, timing.clock() - started)
    reason = failure or reading.detail or f"it is in {reading.mode}"
    if reading.mode:
        raise SwitchFailed(f"power mode {mode} was not reached ({reason})", reading)
    if before.mode:
        apply(before.mode)
        reading = _settle(before.mode, read, timing)
    end = f"the machine is in {reading.mode}" if reading.mode else "the machine is in no known mode"
    raise SwitchFailed(f"power mode {mode} was not reached ({reason}); {end}", reading)


def _settle(mode: str, read: Callable[[], Reading], timing: SwitchTiming) -> Reading:
    """Wait until `mode` has been read for the settling time, or until the timeout."""
    started = timing.clock()
    since: float | None = None
    while True:
        reading = read()
        now = timing.clock()
        if reading.mode != mode:
            since = None
        elif since is None:
            since = now
        if since is not None and now - since >= timing.settle:
            return reading
        if since is None and now - started >= timing.timeout:
            return reading
        timing.sleep(timing.interval)
