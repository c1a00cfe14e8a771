"""Registry and selection of power mode controllers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.runtime.plugins import Registry
from worker_agent.power.controller import PowerController
from worker_agent.power.delegated import DelegatedController

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import MachineFiles

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

    In an unprivileged process, controllers that need root delegate switching to ``synergai-power``.
    """
    chosen = detect(files) if name == AUTO else name
    controller = CONTROLLERS.get(chosen)(files, tuple(modes))
    if chosen in _NEED_ROOT and files.root == Path("/") and os.geteuid() != 0:
        return DelegatedController(controller)
    return controller
