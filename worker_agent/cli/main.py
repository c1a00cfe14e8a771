"""``synergai agent``."""

from __future__ import annotations

from typing import Final

import typer

from synergai.cli.commands import require, settings_command
from synergai.runtime.reexec import run_instead
from worker_agent.agent_settings import AgentSettings
from worker_agent.cli.configurations import check
from worker_agent.cli.install import install, uninstall
from worker_agent.cli.modes import modes

app: Final = typer.Typer(rich_markup_mode="rich")


def _run(settings: AgentSettings) -> None:
    """Connect to a gateway and run the assignments for this machine's engines."""
    require("numpy")
    run_instead("worker_agent.serve", settings)


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
