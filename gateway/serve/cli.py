"""``synergai serve``."""

from __future__ import annotations

import typer

from gateway.serve.serve_settings import ServeSettings
from synergai.cli.commands import require, settings_command
from synergai.cli.process import serve_instead
from synergai.runtime.addresses import check_free


def run(settings: ServeSettings) -> None:
    """Serve the models of a directory: a gateway and a worker in one process.

    Any Open Inference Protocol (KServe V2) client can send requests: gRPC to port 8001, REST to
    port 8002. Agents on other machines can join at the address given with --hub.
    Ctrl-C drains requests in flight; accepted jobs resume after the next start.
    """
    require("prometheus_client")
    check_free(settings.gateway.addresses)  # now, as the server's start takes seconds
    serve_instead("gateway.serve.server:LocalServer", settings)


app = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
app.command(epilog="Example: [bold]synergai serve models[/bold]")(
    settings_command(ServeSettings, run)
)
