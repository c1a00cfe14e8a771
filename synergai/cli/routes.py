"""``synergai routes``: the engines that the gateway deploys in stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import cut_text, format_rate, print_json, print_table
from synergai.core.routes.deployment import route_text
from synergai.names import is_selected

if TYPE_CHECKING:
    from synergai.core.routes.deployment import EngineDeployment

app: Final = typer.Typer(rich_markup_mode="rich")


@app.command(epilog="Example: [bold]synergai routes onnx_resnet50_op11[/bold]")
@on_gateway
def routes(
    gateway: GatewayAddress,
    engine: Annotated[
        str, typer.Argument(metavar="[ENGINE]", help="NAME or NAME/N; by default, all.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show which stages of engines run where, what is wanted instead, and why.

    The rates are the queries per second that the plan expects, and those of the last seconds.
    """
    found = [
        each
        for each in gateway.call(lambda client: client.deployments())
        if is_selected(each.engine, engine)
    ]
    if as_json:
        print_json(found)
        return
    print_table(
        ("engine", "state", "deployed", "wanted", "planned", "rate", "reason"),
        map(_row, found),
        optional=("wanted", "rate"),
    )


def _row(each: EngineDeployment) -> tuple[str | Text, ...]:
    deployed, wanted = ("\n".join(map(route_text, of)) for of in (each.deployed, each.wanted))
    return (
        each.engine,
        each.state,
        deployed,
        "" if wanted == deployed else wanted,
        f"{format_rate(each.predicted_per_s)}/s" if each.predicted_per_s else "",
        f"{format_rate(each.queries_per_s)}/s" if each.queries_per_s else "",
        cut_text(each.fault, "red") if each.fault else Text(each.reason),
    )
