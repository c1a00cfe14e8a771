"""``synergai agent install`` and ``synergai agent uninstall``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.installer import Step

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the steps.")]


def install(
    gateway: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="Address of the gateway's hub.")
    ],
    worker_class: Annotated[
        str,
        typer.Option(
            "--worker-class", metavar="NAME", help="The worker class, such as agx-xavier."
        ),
    ],
    worker_id: Annotated[
        str, typer.Option(help="This worker's name. Default: the host name.")
    ] = "",
    models: Annotated[
        Path | None, typer.Option(help="Model directory. Default: in the service's state.")
    ] = None,
    power: Annotated[
        str, typer.Option(help="nvpmodel, cpufreq, cgroup or none; auto selects by the board.")
    ] = "auto",
    programs: Annotated[
        Path | None,
        typer.Option(help="Directory of the synergai program. Default: that of this program."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Install the agent as a systemd service and start it. Run it again to update."""
    from worker_agent.installer import MODELS, Installation
    from worker_agent.power.files import Files

    installation = Installation(
        gateway=gateway,
        worker_class=worker_class,
        worker_id=worker_id,
        models=str(models) if models else MODELS,
        power=power,
        programs=programs or Path(sys.executable).parent,
    )
    _print_or_execute(list(installation.steps(Files())), dry_run=dry_run)


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove its settings, state and models.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop and remove the agent's service."""
    from worker_agent.installer import removal_steps

    _print_or_execute(list(removal_steps(purge=purge)), dry_run=dry_run)


def _print_or_execute(steps: Sequence[Step], *, dry_run: bool) -> None:
    from worker_agent.installer import execute
    from worker_agent.power.files import Files

    if dry_run:
        for step in steps:
            typer.echo(str(step))
    else:
        execute(steps, Files())
        typer.echo("done; see systemctl status synergai-agent")
