"""``synergai explain``: why a request or job is late, was refused or waits."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import print_json
from synergai.runtime.text import counted, printable

app: Final = typer.Typer(rich_markup_mode="rich")


@app.command(epilog="Example: [bold]synergai explain r1-2a[/bold]")
@on_gateway
def explain(
    gateway: GatewayAddress,
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="[REQUEST|JOB]",
            help="The id of a request or job; by default, of the newest that was late.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Say what a request or job waited for, behind what, and why no worker was in time."""
    found = gateway.call(lambda client: client.explain(request_id))
    if as_json:
        print_json(found)
        return
    typer.echo(printable(f"{found.name}: {counted(found.queries, 'query')} of {found.engine}"))
    for sentence in found.sentences:
        typer.echo(printable(sentence))
