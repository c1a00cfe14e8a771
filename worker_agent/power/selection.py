"""Which way to control power modes a machine has, and how it is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.runtime.plugins import Registry
from worker_agent.power.controller import PowerController
from worker_agent.power.delegated import Delegated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import Files

CONTROLLERS: Final = Registry[PowerController](
    "synergai.power",
    {
        "cgroup": "worker_agent.power.cpu_shares:ProcessorShares",
        "cpufreq": "worker_agent.power.cpufreq:CpuFrequency",
        "none": "worker_agent.power.no_modes:NoModes",
        "nvpmodel": "worker_agent.power.nvpmodel:Nvpmodel",
    },
)
AUTO: Final = "auto"
_NEED_ROOT: Final = frozenset({"cpufreq", "nvpmodel"})


def detect(files: Files) -> str:
    """The controller for this machine: its board's own, or none.

    Changing clocks or shares of a machine that is not a dedicated board is for its owner to ask
    for, by name.
    """
    return "nvpmodel" if files.exists("/etc/nvpmodel.conf") else "none"


def open_controller(name: str, files: Files, modes: Sequence[str] = ()) -> PowerController:
    """The controller called `name`, or with ``auto`` the one for this machine.

    Without root's rights, switching is left to the helper ``synergai-power`` where it is needed.

    Args:
        name: a name in `CONTROLLERS`, or ``auto``.
        files: the machine.
        modes: names of the modes to offer; none means all that there are.

    Raises:
        InvalidInput: there is no controller or mode of such a name.
        NotSupported: the machine does not have what the controller needs.
    """
    chosen = detect(files) if name == AUTO else name
    controller = CONTROLLERS.get(chosen)(files, tuple(modes))
    if chosen in _NEED_ROOT and files.root == Path("/") and os.geteuid() != 0:
        return Delegated(controller)
    return controller
