"""Installation of the agent as a systemd service, and its removal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from synergai.errors import SynergaiError
from synergai.names import validate_name
from synergai.runtime.installation import (
    SETTINGS,
    UNITS,
    Check,
    RemovePath,
    RunCommand,
    WriteFile,
    check_programs,
    path_problem,
    read_unit,
)
from synergai.runtime.setting_types import validate_hubs
from worker_agent.power.helper import ALLOWED
from worker_agent.power.selection import AUTO, detect, known_controller, open_controller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.runtime.installation import Step
    from worker_agent.power.files import MachineFiles

ENVIRONMENT: Final = f"{SETTINGS}/agent.env"
"""The settings that the options of an installation give."""
LOCAL_ENVIRONMENT: Final = f"{SETTINGS}/agent.local.env"
"""Further settings, which installations leave alone."""
SYSUSERS: Final = "/etc/sysusers.d/synergai.conf"
STATE: Final = "/var/lib/synergai-agent"
MODELS: Final = f"{STATE}/models"
SERVICE: Final = "synergai-agent.service"
_DROP_IN: Final = f"{UNITS}/{SERVICE}.d/cgroup.conf"
_SOCKET: Final = "synergai-power.socket"
_UNIT_NAMES: Final = (SERVICE, _SOCKET, "synergai-power@.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInstallation:
    """Options of an installation; `keep_settings` prefers an earlier one's."""

    gateway: str
    worker_class: str
    worker_id: str = ""
    models: str = MODELS
    power: str = AUTO
    programs: str
    keep_settings: bool = False

    def __post_init__(self) -> None:
        validate_hubs(self.gateway)
        validate_name(self.worker_class, "worker class")
        if self.worker_id:
            validate_name(self.worker_id, "worker id")
        known_controller(self.power)

    def steps(self, files: MachineFiles) -> Iterator[Step]:
        """Yield the steps that install the agent on the machine `files`."""
        options = self._with_installed(files) if self.keep_settings else self
        power = detect(files) if options.power == AUTO else options.power
        yield from check_programs(self.programs, ("synergai", "synergai-power"), files.root)
        models = options.models
        yield Check(f"the service can read {models}", path_problem(models, STATE))
        yield WriteFile(SYSUSERS, read_unit("synergai.conf"))
        yield RunCommand(("systemd-sysusers", SYSUSERS))
        yield WriteFile(ENVIRONMENT, self._environment(), mode=0o640, keep=self.keep_settings)
        if power in ("cpufreq", "nvpmodel"):
            yield from _allowed_modes(options.power, files)
        for name in _UNIT_NAMES:
            text = read_unit(name, self.programs)
            if name == "synergai-power@.service" and options.power != AUTO:
                text = text.replace("synergai-power\n", f"synergai-power --controller {power}\n", 1)
            yield WriteFile(f"{UNITS}/{name}", text)
        if power == "cgroup":
            yield WriteFile(_DROP_IN, "[Service]\nDelegate=cpu cpuset\nProtectControlGroups=no\n")
        yield RunCommand(("systemctl", "daemon-reload"))
        yield RunCommand(("systemctl", "enable", "--now", _SOCKET))
        yield RunCommand(("systemctl", "enable", SERVICE))
        # Not `enable --now`: a service that is already running still uses the previous files.
        yield RunCommand(("systemctl", "restart", SERVICE))

    def _with_installed(self, files: MachineFiles) -> AgentInstallation:
        """Return these options with those of the environment file on which other files depend.

        A user who cannot read the file can still print a plan: that of a new installation.
        """
        try:
            lines = files.read(ENVIRONMENT).splitlines()
        except (FileNotFoundError, PermissionError):
            return self
        parts = (line.partition("=") for line in lines)
        settings = {key: value.strip("\"' ") for key, _, value in parts}
        return replace(
            self,
            models=settings.get("SYNERGAI_AGENT_MODELS", self.models),
            power=settings.get("SYNERGAI_AGENT_POWER", self.power),
        )

    def _environment(self) -> str:
        values = {
            "GATEWAY": self.gateway,
            "WORKER_CLASS": self.worker_class,
            "WORKER_ID": self.worker_id,
            "MODELS": self.models,
            "POWER": self.power,
        }
        return "".join(f"SYNERGAI_AGENT_{key}={value}\n" for key, value in values.items() if value)


def _allowed_modes(power: str, files: MachineFiles) -> Iterator[Step]:
    """Yield the steps that list the machine's power modes for the helper."""
    names: list[str] = []
    problem = ""
    try:
        modes = open_controller(power, files).modes()
        names = [mode.name for mode in modes if not mode.refused]
    except SynergaiError as error:
        problem = str(error)
    yield Check(f"{power} lists the machine's power modes", problem)
    text = "# Power modes that the agent may request, one per line.\n"
    yield WriteFile(ALLOWED, text + "".join(f"{name}\n" for name in names), keep=True)


def removal_steps(*, purge: bool = False) -> Iterator[Step]:
    """Yield the steps that remove the agent; `purge` includes its settings, state and models."""
    yield RunCommand(("systemctl", "disable", "--now", SERVICE, _SOCKET), may_fail=True)
    for name in _UNIT_NAMES:
        yield RemovePath(f"{UNITS}/{name}")
    yield RemovePath(_DROP_IN)
    yield RunCommand(("systemctl", "daemon-reload"))
    if purge:
        yield RemovePath(ENVIRONMENT)
        yield RemovePath(LOCAL_ENVIRONMENT)
        yield RemovePath(ALLOWED)
        yield RemovePath(STATE)
        yield RemovePath(SYSUSERS)
