"""What every way to control power modes offers.

Controllers are synchronous: they write to files that block inside the kernel, where asyncio
could not help, and the helper with root's rights uses them without a loop. The agent drives them
from a thread of their own (``worker_agent.power.manager``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from synergai.errors import InvalidInput, NotSupported, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerMode:
    """A state that the machine can be put into.

    Attributes:
        name: what configurations call it.
        cores: how many cores are online in it.
        max_mhz: the cap on their clock; 0 is none.
        budget_w: what the board is designed to stay below in it; 0 is no limit, or unknown.
        number: the board's own number of it, if it has one.
        refused: why it cannot be switched to while the machine runs; empty if it can.
    """

    name: str
    cores: int
    max_mhz: float = 0.0
    budget_w: float = 0.0
    number: int | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the machine itself says about its mode.

    Attributes:
        mode: the mode that all of its files agree on; empty if there is none.
        detail: what does not fit, if no mode does.
    """

    mode: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that was confirmed by reading back.

    Attributes:
        mode: the mode in force now.
        seconds: what the switch took until the machine had settled; 0 if nothing was to do.
    """

    mode: str
    seconds: float


class ModeRefused(NotSupported):
    """The mode is known, but cannot be switched to while the machine runs."""


class SwitchFailed(Unavailable):
    """The machine did not do what was asked.

    Attributes:
        reading: what was read back afterwards.
    """

    def __init__(self, message: str, reading: Reading) -> None:
        super().__init__(message)
        self.reading = reading


class PowerController(Protocol):
    """A way to list, switch and read back the power modes of a machine."""

    def modes(self) -> Sequence[PowerMode]:
        """All modes, those that cannot be switched to at run time included; maybe none.

        Raises:
            NotSupported: the machine's description of its modes cannot be read.
        """

    def read(self) -> Reading:
        """What is in force, from the machine's own files; never what was asked for."""

    def switch(self, mode: str) -> Switch:
        """Put `mode` in force, wait until the machine has settled, and verify.

        Raises:
            InvalidInput: there is no such mode.
            ModeRefused: it needs a reboot, or rights that are not there.
            SwitchFailed: the machine did not follow; its `reading` is what is in force instead.
        """

    def close(self) -> None:
        """Leave the machine in a sane state."""


def find_mode(modes: Sequence[PowerMode], name: str) -> PowerMode:
    """The mode called `name`, or of that number.

    Raises:
        InvalidInput: there is none.
        ModeRefused: it cannot be switched to while the machine runs.
    """
    for mode in modes:
        if name == mode.name or (mode.number is not None and name == str(mode.number)):
            if mode.refused:
                raise ModeRefused(f"power mode {mode.name}: {mode.refused}")
            return mode
    known = ", ".join(mode.name for mode in modes) or "none"
    raise InvalidInput(f"there is no power mode {name!r}; this machine has: {known}")


def offered(modes: Sequence[PowerMode], names: Sequence[str]) -> tuple[PowerMode, ...]:
    """Those of `modes` that are in `names`, or all if that is empty.

    Raises:
        InvalidInput: a name is none of them.
    """
    known = {mode.name for mode in modes}
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"there is no power mode {name!r}; this machine has: {', '.join(sorted(known))}"
            )
    return tuple(mode for mode in modes if not names or mode.name in names)
