"""``synergai agent install`` and ``synergai agent uninstall``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.installer import Step

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, no more.")]


def install(
    gateway: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="The gateway's hub, which the agent dials.")
    ],
    worker_class: Annotated[
        str, typer.Option("--class", metavar="NAME", help="The worker class, such as agx-xavier.")
    ],
    worker_id: Annotated[str, typer.Option(help="This worker's name. Default: the host's.")] = "",
    models: Annotated[
        Path | None, typer.Option(help="Model directory. Default: in the service's state.")
    ] = None,
    power: Annotated[
        str, typer.Option(help="nvpmodel, cpufreq, cgroup or none; auto chooses by the board.")
    ] = "auto",
    programs: Annotated[
        Path | None, typer.Option(help="Folder of the synergai program. Default: that of this one.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Install the agent as a service of systemd, and start it; again is an update."""
    from worker_agent.installer import MODELS, Installation
    from worker_agent.power.files import Files

    wanted = Installation(
        gateway=gateway,
        worker_class=worker_class,
        worker_id=worker_id,
        models=str(models) if models else MODELS,
        power=power,
        programs=programs or Path(sys.executable).parent,
    )
    _do(list(wanted.steps(Files())), dry_run=dry_run)


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove its settings, state and models as well.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Stop the agent's service, and remove it."""
    from worker_agent.installer import removal

    _do(list(removal(purge=purge)), dry_run=dry_run)


def _do(steps: Sequence[Step], *, dry_run: bool) -> None:
    from worker_agent.installer import carry_out
    from worker_agent.power.files import Files

    if dry_run:
        for step in steps:
            typer.echo(str(step))
    else:
        carry_out(steps, Files())
        typer.echo("done; systemctl status synergai-agent shows how it is")
