"""Registry and selection of power mode controllers."""

from __future__ import annotations

import json
import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import InvalidInput, NotSupported
from synergai.runtime.plugins import Registry
from worker_agent.power.controller import (
    ModeRefused,
    NoModesController,
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


SOCKET: Final = Path("/run/synergai/power.sock")
_REPLY_TIMEOUT_S: Final = 120.0
"""Covers a switch, its settling time, and the switch back if it fails."""
_MAX_REPLY_BYTES: Final = 64 << 10
_NO_HELPER_REASON: Final = (
    "switching needs root, and the helper is not running; start synergai-power.socket"
)

_log = logging.getLogger(__name__)


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


CONTROLLERS: Final = Registry[PowerController](
    "synergai.power",
    {
        "cgroup": "worker_agent.power.cpu_shares:CpuShareController",
        "cpufreq": "worker_agent.power.cpufreq:CpuFrequencyController",
        "none": "worker_agent.power.controller:NoModesController",
        "nvpmodel": "worker_agent.power.nvpmodel:NvpmodelController",
    },
)
AUTO: Final = "auto"
_NEED_ROOT: Final = frozenset({"cpufreq", "nvpmodel"})


def detect(files: MachineFiles) -> str:
    """Return the name of the controller for this machine's board, or ``none``.

    Controllers that change the clocks or CPU share of a general-purpose machine have to be
    requested by name.
    """
    return "nvpmodel" if files.exists("/etc/nvpmodel.conf") else "none"


def known_controller(name: str) -> str:
    """Return `name` if it is ``auto`` or one in `CONTROLLERS`."""
    return name if name == AUTO else CONTROLLERS.check(name)


def open_controller(name: str, files: MachineFiles, modes: Sequence[str] = ()) -> PowerController:
    """Open the controller with this name.

    With ``auto``, a board whose modes cannot be used has none, unless some are asked for: it can
    serve without. In an unprivileged process, controllers that need root delegate switching to
    ``synergai-power``.

    Raises:
        NotSupported: the machine's description of its modes is not understood.
    """
    chosen = detect(files) if name == AUTO else name
    options = {"lenient": True} if name == AUTO and chosen == "nvpmodel" else {}
    try:
        controller = CONTROLLERS.get(chosen)(files, tuple(modes), **options)
    except NotSupported as error:
        if name != AUTO or modes:
            raise
        _log.warning("serving without power modes: %s", error)
        return NoModesController(files)
    if chosen in _NEED_ROOT and files.root == Path("/") and os.geteuid() != 0:
        return DelegatedController(controller)
    return controller
