"""Controller for machines without power modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from worker_agent.power.controller import PowerMode, Reading, SwitchResult, find_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import MachineFiles


class NoModesController:
    """Controller without any mode."""

    def __init__(self, files: MachineFiles, modes: Sequence[str] = ()) -> None:  # noqa: ARG002  # the common signature
        if modes:
            raise InvalidInput("this machine has no power modes; omit their names")

    def modes(self) -> Sequence[PowerMode]:
        """Return no modes."""
        return ()

    def read(self) -> Reading:
        """Return an empty reading."""
        return Reading()

    def switch(self, mode: str) -> SwitchResult:
        """Reject the switch."""
        return SwitchResult(find_mode((), mode).name, 0.0)

    def close(self) -> None:
        """Do nothing."""
