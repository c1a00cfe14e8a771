"""Choice among the controllers of power modes, by name or by the board."""

from __future__ import annotations

import json
import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import InvalidInput, NotSupported
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

    from worker_agent.power.files import MachineFiles

_SOCKET: Final = Path("/run/synergai/power.sock")
_REPLY_TIMEOUT_S: Final = 120.0
"""Covers a switch, its settling time, and the switch back if it fails."""
_MAX_REPLY_BYTES: Final = 64 << 10
_NO_HELPER_REASON: Final = (
    "switching needs root, and the helper is not running; start synergai-power.socket"
)

_log = logging.getLogger(__name__)


class NoModesController:
    """Controller without any mode."""

    def __init__(self, modes: Sequence[str] = ()) -> None:
        if modes:
            raise InvalidInput("this machine has no power modes; omit their names")

    def modes(self) -> Sequence[PowerMode]:
        return ()

    def read(self) -> Reading:
        return Reading()

    def switch(self, mode: str) -> SwitchResult:
        return SwitchResult(find_mode((), mode).name, 0.0)

    def close(self) -> None:
        """Do nothing."""


class DelegatedController:
    """Controller that delegates switching to the helper and verifies the result itself."""

    def __init__(self, reader: PowerController, address: Path = _SOCKET) -> None:
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


AUTO: Final = "auto"
CONTROLLERS: Final = ("cgroup", "none", "nvpmodel")


def detect(files: MachineFiles) -> str:
    """Return the name of the controller for this machine's board, or ``none``.

    The CPU shares of a general-purpose machine have to be requested by name.
    """
    return "nvpmodel" if files.exists("/etc/nvpmodel.conf") else "none"


def known_controller(name: str) -> str:
    """Return `name` if it is ``auto`` or one in `CONTROLLERS`."""
    if name not in (AUTO, *CONTROLLERS):
        available = ", ".join((AUTO, *CONTROLLERS))
        raise InvalidInput(f"{name!r} is not a power controller; available: {available}")
    return name


def open_controller(name: str, files: MachineFiles, modes: Sequence[str] = ()) -> PowerController:
    """Open the controller with this name.

    With ``auto``, a board whose modes cannot be used has none, unless some are asked for: it can
    serve without. In an unprivileged process, ``nvpmodel``, which needs root, delegates switching
    to ``synergai-power``.
    """
    chosen = detect(files) if name == AUTO else name
    if chosen == "none":
        return NoModesController(modes)
    if chosen == "cgroup":
        from worker_agent.power.cpu_shares import CpuShareController

        return CpuShareController(files, modes)
    from worker_agent.power.nvpmodel import NvpmodelController

    try:
        controller = NvpmodelController(files, modes)
    except NotSupported as error:
        if name != AUTO or modes:
            raise
        _log.warning("serving without power modes: %s", error)
        return NoModesController()
    if files.root == Path("/") and os.geteuid() != 0:
        return DelegatedController(controller)
    return controller
