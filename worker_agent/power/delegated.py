"""Controller of an unprivileged process: switches through the privileged helper."""

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
    SwitchFailed,
    SwitchResult,
    find_mode,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

SOCKET: Final = Path("/run/synergai/power.sock")
_REPLY_TIMEOUT_S: Final = 120.0
"""Covers a switch, its settling time, and the switch back if it fails."""
_MAX_REPLY_BYTES: Final = 64 << 10
_NO_HELPER_REASON: Final = (
    "switching needs root, and the helper is not running; start synergai-power.socket"
)


class DelegatedController:
    """Controller that delegates switching to the helper and verifies the result itself."""

    def __init__(self, reader: PowerController, address: Path = SOCKET) -> None:
        self._reader = reader
        self._address = address

    def modes(self) -> Sequence[PowerMode]:
        """Return the modes; without a helper, only the mode in force is available."""
        if self._address.exists():
            return self._reader.modes()
        in_force = self._reader.read().mode
        return tuple(
            mode
            if mode.refused or mode.name == in_force
            else replace(mode, refused=_NO_HELPER_REASON)
            for mode in self._reader.modes()
        )

    def read(self) -> Reading:
        """Read the mode in force without the helper."""
        return self._reader.read()

    def switch(self, mode: str) -> SwitchResult:
        """Switch through the helper; see `PowerController.switch`."""
        wanted = find_mode(self.modes(), mode).name
        reply = self._request(wanted)
        reading = self.read()
        message = str(reply.get("message", "the helper gave no reason"))
        error = reply.get("error")
        if error == "refused":
            raise ModeRefused(message)
        if error == "unknown":
            raise InvalidInput(message)
        if error is not None:
            raise SwitchFailed(message, reading)
        if reading.mode != wanted:
            detail = reading.detail or f"it is {reading.mode}"
            raise SwitchFailed(
                f"the helper reported power mode {wanted} in force, but {detail}", reading
            )
        return SwitchResult(wanted, float(reply.get("seconds", 0.0)))

    def close(self) -> None:
        """Leave the machine in its mode."""
        # The reader changed nothing, so there is nothing to restore.

    def _request(self, mode: str) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_REPLY_TIMEOUT_S)
                connection.connect(str(self._address))
                connection.sendall(f"{mode}\n".encode())
                with connection.makefile("rb") as replies:
                    reply = json.loads(replies.readline(_MAX_REPLY_BYTES))
        except (OSError, ValueError) as error:
            raise SwitchFailed(
                f"no reply from the helper at {self._address}: {error}", self.read()
            ) from error
        if not isinstance(reply, dict):
            raise SwitchFailed(f"malformed reply from the helper at {self._address}", self.read())
        return reply
