"""``synergai agent``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.commands import require, settings_command
from synergai.cli.install import DryRun, Programs, print_or_execute
from synergai.cli.options import AsJson
from synergai.cli.serving import serve_instead
from synergai.runtime.paths import default_worker_class
from synergai.runtime.setting_types import HUB
from worker_agent.agent_settings import AgentSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Configuration
    from worker_agent.power.controller import PowerMode, Reading
    from worker_agent.providers.choice import Offers


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


def check(config: Config = None) -> None:
    """Check the agent's settings, and show its execution providers and configurations.

    The settings are read from the agent's environment variables and file. Each execution provider
    computes a small model on its device, in a separate process. The exit code is 1 if one cannot.
    """
    import asyncio

    from worker_agent.agent_settings import AgentSettings
    from worker_agent.hosts.provider_offers import Runtimes, find_offers
    from worker_agent.power.files import MachineFiles
    from worker_agent.power.selection import open_controller

    settings = AgentSettings.load(file=config)
    worker = settings.worker
    offers = asyncio.run(find_offers(worker.providers, Runtimes(), settings.state / "providers"))
    controller = open_controller(worker.power, MachineFiles(worker.root), worker.power_modes)
    try:
        modes = [mode for mode in controller.modes() if not mode.refused]
    finally:
        controller.close()
    _print_offers(offers, worker.configurations(modes, offers), worker.worker_id)
    if offers.refusals:
        raise typer.Exit(1)


def _print_offers(offers: Offers, configurations: Sequence[Configuration], worker_id: str) -> None:
    from synergai.cli.output import print_table

    rows = [("CPU", "", "offered")] if offers.cpu else []
    for choice in offers.choices:
        beside = f"offered, as worker {worker_id}.{choice.suffix}"
        rows.append((choice.name, choice.device, beside if choice.parallel else "offered"))
    rows += [
        (refusal.choice.name, refusal.choice.device, f"not offered: {refusal.reason}")
        for refusal in offers.refusals
    ]
    print_table(("provider", "device", ""), rows)
    typer.echo()
    print_table((f"configurations of {worker_id}",), [(str(each),) for each in configurations])


_SETTINGS: Final = ("gateway", "worker_class", "worker_id", "models", "power")
"""The parameters of `install` that are settings of the agent."""


def install(
    context: typer.Context,
    gateway: Annotated[
        str, typer.Option(metavar="HOST:PORT[,…]", help="Address of the gateway's hub.")
    ] = HUB,
    worker_class: Annotated[
        str, typer.Option(metavar="NAME", help="The worker class, such as agx-xavier.")
    ] = default_worker_class(),
    worker_id: Annotated[
        str, typer.Option(help="This worker's name. Default: the host name.")
    ] = "",
    models: Annotated[
        Path | None, typer.Option(help="Model directory. Default: in the service's state.")
    ] = None,
    power: Annotated[
        str, typer.Option(help="nvpmodel, cpufreq, cgroup or none; auto selects by the board.")
    ] = "auto",
    programs: Programs = None,
    dry_run: DryRun = False,
) -> None:
    """Install the agent as a systemd service and start it. Run it again to update.

    Without options for the agent, an update keeps the previous ones.
    """
    from worker_agent.installer import MODELS, SERVICE, AgentInstallation
    from worker_agent.power.files import MachineFiles

    installation = AgentInstallation(
        gateway=gateway,
        worker_class=worker_class,
        worker_id=worker_id,
        models=str(models) if models else MODELS,
        power=power,
        programs=str(programs or Path(sys.executable).parent),
        keep_settings=not any(_is_given(context, name) for name in _SETTINGS),
    )
    done = f"done; see systemctl status {SERVICE}"
    print_or_execute(installation.steps(MachineFiles()), done, dry_run=dry_run)


def _is_given(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove its settings, state and models.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop and remove the agent's service."""
    from worker_agent.installer import SERVICE, removal_steps

    print_or_execute(removal_steps(purge=purge), f"removed {SERVICE}", dry_run=dry_run)


def modes(config: Config = None, as_json: AsJson = False) -> None:
    """List this machine's power modes and the one in force.

    The agent's settings select the power controller.
    """
    # Imported here: an agent never needs it, and it takes 2 MB.
    from synergai.cli.output import print_json
    from worker_agent.agent_settings import AgentSettings
    from worker_agent.power.files import MachineFiles
    from worker_agent.power.selection import open_controller

    worker = AgentSettings.load(file=config).worker
    controller = open_controller(worker.power, MachineFiles(worker.root))
    try:
        found, reading = controller.modes(), controller.read()
    finally:
        controller.close()
    if as_json:
        print_json({"modes": found, "in_force": reading})
    else:
        _print_modes(found, reading)


def _print_modes(found: Sequence[PowerMode], reading: Reading) -> None:
    from synergai.cli.output import print_table

    if not found:
        typer.echo("This machine has no power modes.")
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
app.command(epilog="Example: [bold]SYNERGAI_AGENT_POWER=nvpmodel synergai agent modes[/bold]")(
    modes
)
