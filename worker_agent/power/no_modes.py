"""For machines that stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from worker_agent.power.controller import PowerMode, Reading, Switch, find_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import Files


class NoModes:
    """A machine without power modes.

    Args:
        files: not looked at.
        modes: must be empty.

    Raises:
        InvalidInput: on construction, if modes are asked for.
    """

    def __init__(self, files: Files, modes: Sequence[str] = ()) -> None:  # noqa: ARG002  # as all
        if modes:
            raise InvalidInput("this machine has no power modes to choose from")

    def modes(self) -> Sequence[PowerMode]:
        """None."""
        return ()

    def read(self) -> Reading:
        """No mode, and nothing wrong about it."""
        return Reading()

    def switch(self, mode: str) -> Switch:
        """Refuse.

        Raises:
            InvalidInput: always.
        """
        return Switch(find_mode((), mode).name, 0.0)

    def close(self) -> None:
        """Nothing to do."""
