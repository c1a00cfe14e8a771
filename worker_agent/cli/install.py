"""``synergai agent install`` and ``synergai agent uninstall``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from synergai.cli.install import DryRun, Programs, print_or_execute
from synergai.runtime.paths import default_worker_class
from synergai.runtime.setting_types import HUB

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
