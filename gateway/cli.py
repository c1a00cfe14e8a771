"""``synergai gateway``."""

from __future__ import annotations

import typer

from gateway.settings import GatewaySettings
from synergai.cli.commands import settings_command
from synergai.runtime.service import run_service


def run(settings: GatewaySettings) -> None:
    """Run the gateway: clients and agents connect to it.

    Any Open Inference Protocol (KServe V2) client can send requests, with deadlines; jobs are
    submitted with [bold]synergai submit[/bold]. Agents connect with [bold]synergai agent[/bold].
    Ctrl-C drains requests in flight; accepted jobs resume after the next start.
    """
    from gateway.server import GatewayProcess  # imports gRPC, which --help does not need

    run_service(lambda: GatewayProcess(settings), settings.log_level)


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.command()(settings_command(GatewaySettings, run))
