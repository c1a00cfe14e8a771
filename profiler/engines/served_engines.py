"""``synergai engines load``, ``unload``, ``forget`` and ``rollout``: engines of a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from synergai.cli.gateway_client import GatewayAddress, ServedEngine, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import cut_text, format_percent, format_seconds, print_json, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from synergai.client.client import Client
    from synergai.client.fleet import VersionFigures, VersionPolicy

app: Final = typer.Typer()


@app.command(epilog="Example: [bold]synergai engines load onnx_digits[/bold]")
@on_gateway
def load(
    gateway: GatewayAddress,
    engine: ServedEngine,
) -> None:
    """Load an engine on every worker that has it, ahead of the first query.

    Returns when the first worker is ready. An unloaded engine is put back in service.
    """
    gateway.call(lambda client: client.load(engine), engine)
    typer.echo(f"{engine} is loaded")


@app.command(epilog="Example: [bold]synergai engines unload onnx_digits[/bold]")
@on_gateway
def unload(
    gateway: GatewayAddress,
    engine: ServedEngine,
) -> None:
    """Take an engine out of service and evict it from workers, until it is loaded again.

    Work accepted before is completed. Model files are kept.
    """
    gateway.call(lambda client: client.unload(engine), engine)
    typer.echo(f"{engine} is unloaded")


@app.command(epilog="Example: [bold]synergai engines forget onnx_digits[/bold]")
@on_gateway
def forget(
    gateway: GatewayAddress,
    engine: ServedEngine,
) -> None:
    """Let another engine take over a name that clients have used.

    Workers whose engine differs from the one in service are not used for it (synergai workers shows
    which). This decides again which one is in service, such as after the workers that served it
    were replaced. An engine that no connected worker can run is no longer listed, until a
    worker offers it again or the gateway is sent a profile of it. Its profiles are kept.
    """
    gateway.call(lambda client: client.forget(engine), engine)
    typer.echo(f"the description of {engine} is forgotten")


@app.command(
    epilog="Examples: [bold]synergai engines rollout resnet50 --to 2 --share 10%[/bold], then "
    "[bold]synergai engines rollout resnet50 --promote[/bold]"
)
@on_gateway
def rollout(
    gateway: GatewayAddress,
    engine: ServedEngine,
    to: Annotated[str, typer.Option(metavar="N", help="Give version N a share.")] = "",
    share: Annotated[
        str, typer.Option(metavar="PERCENT", help="The share of requests, such as 10%.")
    ] = "",
    promote: Annotated[
        bool, typer.Option("--promote", help="End the rollout with the new version.")
    ] = False,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="End the rollout with the old version.")
    ] = False,
    pin: Annotated[str, typer.Option(metavar="N", help="Give version N all requests.")] = "",
    latest: Annotated[
        bool, typer.Option("--latest", help="Give the highest usable version all requests.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show or change the version of an engine for requests that name none.

    A new version gets requests once a worker has loaded it; the command returns then. If none can,
    the rollout is rolled back. The same request id always gets the same version, and growing the
    share only moves requests to the new version. Without options, shows the state of the rollout.
    """
    from synergai.errors import InvalidInput

    if sum(map(bool, (to, promote, rollback, pin, latest))) > 1:
        raise InvalidInput("use only one of --to, --promote, --rollback, --pin and --latest")
    if bool(to) != bool(share):
        raise InvalidInput("--to needs --share, and --share needs --to")
    part = _parse_share(share) if share else 0.0

    async def change(client: Client) -> VersionPolicy:
        if to:
            return await client.roll_out(engine, to, part)
        if promote:
            return await client.promote(engine)
        if rollback:
            return await client.roll_back(engine)
        if pin or latest:
            return await client.pin(engine, pin)
        return await client.version_policy(engine)

    policy = gateway.call(change, engine)
    if as_json:
        print_json(policy)
        return
    typer.echo(f"{engine}: {_policy_text(policy)}")
    if policy.reason and not policy.target:
        typer.echo(f"the last rollout was rolled back: {policy.reason}")
    columns = ("version", "state", "requests", "errors", "mean", "queries", "accuracy")
    print_table(columns, map(_version_row, policy.versions))


def _parse_share(text: str) -> float:
    """Return a share from 0 to 1, written as ``10%``."""
    from synergai.errors import InvalidInput

    number = text.removesuffix("%")
    try:
        percent = float(number)
    except ValueError:
        percent = -1.0
    if 0.0 <= percent <= 100.0 and number == text:
        # Not accepted: 0.5 may mean half of the requests, or half a percent.
        or_share = f" or {percent * 100:g}%" if 0 < percent < 1 else ""
        raise InvalidInput(f"--share: {text!r} needs a percent sign: {text}%{or_share}")
    if not 0.0 <= percent <= 100.0:
        raise InvalidInput(f"--share: {text!r} is not a percentage from 0% to 100%, such as 10%")
    return percent / 100.0


def _policy_text(policy: VersionPolicy) -> str:
    if policy.target:
        why = f", as {policy.reason}" if policy.reason else ""
        return (
            f"version {policy.target} gets {policy.share * 100:.4g}% of requests, version "
            f"{policy.base} the others{why}"
        )
    if policy.base:
        return f"version {policy.base} gets all requests"
    text = "the highest usable version gets all requests"
    usable = [each for each in policy.versions if each.in_service]
    prepared = [each for each in usable if each.prepared]
    if not prepared or usable[-1].prepared:
        return f"{text}: version {usable[-1].version}" if usable else text
    return (
        f"{text}: version {usable[-1].version} once it is loaded, {prepared[-1].version} until then"
    )


def _version_row(row: VersionFigures) -> tuple[str | Text, ...]:
    state: str | Text = "loaded" if row.loaded else "not loaded"
    if row.reason:
        state = cut_text(row.reason, "red")
    accuracy = row.correct / row.labelled if row.labelled else None
    mean = format_seconds(row.mean_s) if row.mean_s else ""
    counts = (f"{row.requests:,}", f"{row.errors:,}", mean, f"{row.queries:,}")
    return row.version, state, *counts, format_percent(accuracy)
