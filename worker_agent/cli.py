"""``synergai agent``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.commands import require, settings_command
from synergai.cli.process import serve_instead
from synergai.errors import SynergaiError
from synergai.names import validate_name
from synergai.runtime.installation import SETTINGS, UNITS, Installer, programs_problem, read_unit
from synergai.runtime.paths import default_worker_class
from synergai.runtime.setting_types import HUB, validate_hubs
from worker_agent.agent_settings import AgentSettings
from worker_agent.power.files import MachineFiles
from worker_agent.power.helper import ALLOWED
from worker_agent.power.selection import AUTO, detect, known_controller, open_controller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Configuration
    from worker_agent.power.controller import PowerMode, Reading

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

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="SYNERGAI_AGENT_CONFIG",
        show_envvar=False,
        help="TOML file with the agent's settings. Its environment variables take precedence.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInstallation:
    """Options of an installation; `keep_settings` prefers an earlier one's."""

    gateway: str
    worker_class: str
    power: str = AUTO
    programs: str
    keep_settings: bool = False

    def __post_init__(self) -> None:
        validate_hubs(self.gateway)
        validate_name(self.worker_class, "worker class")
        known_controller(self.power)

    def install(self, installer: Installer, files: MachineFiles) -> None:
        """Install the agent on the machine `files`."""
        power = self._installed_power(files) if self.keep_settings else self.power
        programs = ("synergai", "synergai-power")
        installer.require(programs_problem(self.programs, programs, files.root))
        switches = "nvpmodel" in (power, detect(files) if power == AUTO else "")
        modes, problem = _allowed_modes(power, files) if switches else ((), "")
        installer.require(problem)
        installer.write(SYSUSERS, read_unit("synergai.conf"))
        installer.run("systemd-sysusers", SYSUSERS)
        installer.write(ENVIRONMENT, self._environment(), mode=0o640, keep=self.keep_settings)
        if switches:
            lines = ("# Power modes that the agent may request, one per line.", *modes)
            installer.write(ALLOWED, "".join(f"{line}\n" for line in lines), keep=True)
        for name in _UNIT_NAMES:
            installer.write(f"{UNITS}/{name}", read_unit(name, self.programs))
        if power == "cgroup":
            installer.write(_DROP_IN, "[Service]\nDelegate=cpu cpuset\nProtectControlGroups=no\n")
        installer.run("systemctl", "daemon-reload")
        installer.run("systemctl", "enable", "--now", _SOCKET)
        installer.run("systemctl", "enable", SERVICE)
        # Not `enable --now`: a service that is already running still uses the previous files.
        installer.run("systemctl", "restart", SERVICE)

    def _installed_power(self, files: MachineFiles) -> str:
        """Return the power controller of the environment file, on which other files depend.

        A user who cannot read the file can still print a plan: that of a new installation.
        """
        try:
            lines = files.read(ENVIRONMENT).splitlines()
        except (FileNotFoundError, PermissionError):
            return self.power
        settings = dict(line.split("=", 1) for line in lines if "=" in line)
        return settings.get("SYNERGAI_AGENT_POWER", self.power).strip("\"' ")

    def _environment(self) -> str:
        values = {
            "GATEWAY": self.gateway,
            "WORKER_CLASS": self.worker_class,
            "MODELS": MODELS,
            "POWER": self.power,
        }
        return "".join(f"SYNERGAI_AGENT_{key}={value}\n" for key, value in values.items())


def _allowed_modes(power: str, files: MachineFiles) -> tuple[tuple[str, ...], str]:
    """Return the power modes for the helper's list, or why they are not known."""
    try:
        modes = open_controller(power, files).modes()
    except SynergaiError as error:
        return (), str(error)
    return tuple(mode.name for mode in modes if not mode.refused), ""


def remove(installer: Installer, *, purge: bool = False) -> None:
    """Remove the agent; `purge` includes its settings, state and models."""
    installer.run("systemctl", "disable", "--now", SERVICE, _SOCKET, may_fail=True)
    for name in _UNIT_NAMES:
        installer.remove(f"{UNITS}/{name}")
    installer.remove(_DROP_IN)
    installer.run("systemctl", "daemon-reload")
    if purge:
        for path in (ENVIRONMENT, LOCAL_ENVIRONMENT, ALLOWED, STATE, SYSUSERS):
            installer.remove(path)


def check(config: Config = None) -> None:
    """Check the agent's settings; show its power modes and configurations.

    The settings are read from the agent's environment variables and file.
    """
    worker = AgentSettings.load(file=config).worker
    controller = open_controller(worker.power, MachineFiles(worker.root), worker.power_modes)
    try:
        modes, reading = controller.modes(), controller.read()
    finally:
        controller.close()
    _print_modes(modes, reading)
    usable = [mode for mode in modes if not mode.refused]
    _print_configurations(worker.configurations(usable), worker.worker_id)


def _print_configurations(configurations: Sequence[Configuration], worker_id: str) -> None:
    from synergai.cli.output import print_table

    print_table((f"configurations of {worker_id}",), [(str(each),) for each in configurations])


_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print the steps, and what would prevent them.")
]
_SETTINGS: Final = ("gateway", "worker_class", "power")
"""The parameters of `install` that are settings of the agent."""


def install(
    context: typer.Context,
    gateway: Annotated[
        str, typer.Option(metavar="HOST:PORT[,…]", help="Address of the gateway's hub.")
    ] = HUB,
    worker_class: Annotated[
        str, typer.Option(metavar="NAME", help="The worker class, such as agx-xavier.")
    ] = default_worker_class(),
    power: Annotated[
        str, typer.Option(help="nvpmodel, cgroup or none; auto selects by the board.")
    ] = "auto",
    dry_run: _DryRun = False,
) -> None:
    """Install the agent as a systemd service and start it. Run it again to update.

    Without options for the agent, an update keeps the previous ones. Further settings belong into
    /etc/synergai/agent.local.env.
    """
    installation = AgentInstallation(
        gateway=gateway,
        worker_class=worker_class,
        power=power,
        programs=str(Path(sys.executable).parent),
        keep_settings=not any(_is_given(context, name) for name in _SETTINGS),
    )
    installation.install(Installer(typer.echo if dry_run else None), MachineFiles())
    if not dry_run:
        typer.echo(f"done; see systemctl status {SERVICE}")


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove its settings, state and models.")
    ] = False,
    dry_run: _DryRun = False,
) -> None:
    """Stop and remove the agent's service."""
    remove(Installer(typer.echo if dry_run else None), purge=purge)
    if not dry_run:
        typer.echo(f"removed {SERVICE}")


def _print_modes(found: Sequence[PowerMode], reading: Reading) -> None:
    from synergai.cli.output import print_table

    if not found:
        return
    rows = [
        (
            mode.name,
            "" if mode.number is None else str(mode.number),
            str(mode.cores),
            f"{mode.max_mhz:.0f} MHz" if mode.max_mhz else "",
            f"{mode.budget_w:g} W" if mode.budget_w else "",
            mode.refused or ("in force" if mode.name == reading.mode else ""),
        )
        for mode in found
    ]
    print_table(("mode", "number", "cores", "clock", "budget", ""), rows)
    if not reading.mode:
        typer.echo(f"no known mode: {reading.detail}")
    typer.echo()


app: Final = typer.Typer(rich_markup_mode="rich")


def _run(settings: AgentSettings) -> None:
    """Connect to a gateway and run the assignments for this machine's engines."""
    require("numpy")
    serve_instead("worker_agent.app:Agent", settings)


app.callback(
    invoke_without_command=True,
    epilog="Example: [bold]synergai agent --gateway 10.0.0.1:8010 --models models "
    "--worker-class agx-xavier --threads 1,4[/bold]",
)(settings_command(AgentSettings, _run))
app.command(
    epilog="Example: [bold]synergai agent install --gateway 10.0.0.1:8010 --worker-class "
    "agx-xavier[/bold]"
)(install)
app.command(epilog="Example: [bold]synergai agent uninstall --dry-run[/bold]")(uninstall)
app.command(epilog="Example: [bold]synergai agent check --config agent.toml[/bold]")(check)
