"""Registry and selection of power mode controllers."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from synergai.runtime.plugins import Registry
from worker_agent.power.controller import NoModesController, PowerController
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

_log = logging.getLogger(__name__)


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
