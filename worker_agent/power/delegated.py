"""Switching by the helper that has root's rights; everything else without it."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import InvalidInput
from worker_agent.power.controller import (
    ModeRefused,
    PowerController,
    PowerMode,
    Reading,
    Switch,
    SwitchFailed,
    find_mode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SOCKET: Final = Path("/run/synergai/power.sock")
_ANSWER_S: Final = 120.0
"""A switch, its settling, and the way back if it fails."""
_ANSWER_BYTES: Final = 64 << 10


class Delegated:
    """Asks the helper to switch, and believes only what it reads itself.

    Args:
        reader: lists and reads modes without further rights.
        address: where the helper listens.
    """

    def __init__(self, reader: PowerController, address: Path = SOCKET) -> None:
        self._reader = reader
        self._address = address

    def modes(self) -> Sequence[PowerMode]:
        """The machine's modes; without a helper, only that in force can be had."""
        if self._address.exists():
            return self._reader.modes()
        in_force = self._reader.read().mode
        return tuple(
            mode if mode.refused or mode.name == in_force else replace(mode, refused=_NO_HELPER)
            for mode in self._reader.modes()
        )

    def read(self) -> Reading:
        """What is in force, read without the helper."""
        return self._reader.read()

    def switch(self, mode: str) -> Switch:
        """Have the helper switch; see `PowerController.switch`."""
        wanted = find_mode(self.modes(), mode).name
        answer = self._ask(wanted)
        reading = self.read()
        message = str(answer.get("message", "the helper gave no reason"))
        match answer.get("error"):
            case None if reading.mode == wanted:
                return Switch(wanted, float(answer.get("seconds", 0.0)))
            case None:
                detail = reading.detail or f"it is {reading.mode}"
                raise SwitchFailed(
                    f"the helper says that power mode {wanted} is in force, but {detail}", reading
                )
            case "refused":
                raise ModeRefused(message)
            case "unknown":
                raise InvalidInput(message)
            case _:
                raise SwitchFailed(message, reading)

    def close(self) -> None:
        """Leave the machine in the mode that it is in."""
        # The reader changed nothing, so it has nothing to give back.

    def _ask(self, mode: str) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(_ANSWER_S)
                line.connect(str(self._address))
                line.sendall(f"{mode}\n".encode())
                with line.makefile("rb") as answers:
                    answer = json.loads(answers.readline(_ANSWER_BYTES))
        except (OSError, ValueError) as error:
            raise SwitchFailed(
                f"the helper at {self._address} does not answer: {error}", self.read()
            ) from error
        if not isinstance(answer, dict):
            raise SwitchFailed(f"the helper at {self._address} makes no sense", self.read())
        return answer


_NO_HELPER: Final = (
    "switching needs root's rights, and no helper listens; start synergai-power.socket"
)
