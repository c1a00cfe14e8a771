"""Commands on the engines of a gateway: those it serves, and those in its store."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from synergai.cli.fleet import placed_text
from synergai.cli.gateway_client import GatewayAddress, ServedEngine, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import cut_text, format_percent, format_seconds, print_json, print_table

if TYPE_CHECKING:
    from synergai.client.client import Client
    from synergai.client.fleet import VersionFigures, VersionPolicy
    from synergai.client.store import StoreContent, StoredEngine


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
    gateway.call(lambda client: client.load(engine))
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
    gateway.call(lambda client: client.unload(engine))
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
    gateway.call(lambda client: client.forget(engine))
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

    policy = gateway.call(change)
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


_DIGEST_CHARS: Final = 12

Stored = Annotated[str, typer.Argument(metavar="ENGINE", help="Name of an engine in the store.")]
StoredVersion = Annotated[int, typer.Option("--version", metavar="N", help="Its version.")]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--place",
        metavar="SELECTOR",
        help="Workers that fetch it: class=NAME, label=NAME or worker=ID, with commas for all of "
        "them at once; may be repeated. Default: every worker with its backend.",
    ),
]


@app.command(
    epilog="Example: [bold]synergai engines push resnet50.onnx --version 2 --place "
    "class=agx-xavier[/bold]"
)
@on_gateway
def push(
    gateway: GatewayAddress,
    path: Annotated[
        Path,
        typer.Argument(help="The model: a file, a SavedModel, or a folder of a model directory."),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The engine's name. Default: that of the folder, or of the file without suffix.",
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The engine's version, from 1; by default 1, if the gateway does not know it.",
        ),
    ] = None,
    place: Places = None,
) -> None:
    """Push a version of an engine into the gateway's store, from which workers fetch it.

    Content that the store has is not sent again, and an interrupted push is continued by the next
    one. A version does not change: push other files as another version, or remove it first.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from synergai.models.formats.model_files import DEFINITION_FILE
    from synergai.models.manifest import pack, packed_name

    engine = packed_name(path) if name is None else name
    if version is None:
        version = gateway.call(lambda client: first_version(client, engine))
    package = pack(path, engine, version)
    if DEFINITION_FILE not in {file.path for file in package.manifest.files}:
        typer.echo(
            f"it is pushed without an {DEFINITION_FILE}: max_batch is 1, so that its requests are "
            "not batched; to keep settings, push the folder of the model with that file in it",
            err=True,
        )
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=package.manifest.size)

        async def run(client: Client) -> StoredEngine:
            return await client.push_engine(
                engine,
                version,
                package.manifest.encode(),
                package.paths,
                place=place or (),
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )

        stored = gateway.call(run)
    typer.echo(f"version {version} of {engine} is stored, digest {stored.digest}")
    if tuple(place or ()) and not stored.workers:
        typer.echo("no connected worker is selected and has the backend; see 'synergai workers'")


async def first_version(client: Client, name: str) -> int:
    """Return version 1 for an engine that the gateway does not know."""
    from synergai.errors import InvalidInput
    from synergai.names import split_version

    stored = await client.stored_engines()
    versions = {each.version for each in stored.engines if each.engine == name}
    for worker in await client.workers():
        offered = (split_version(engine.name) for engine in worker.engines)
        versions |= {int(version) for engine, version in offered if engine == name}
    if not versions:
        return 1
    known = ", ".join(map(str, sorted(versions)))
    raise InvalidInput(
        f"the gateway has versions of engine {name!r} already: {known}; say which one this is, as "
        f"with --version {max(versions) + 1}"
    )


@app.command("store", epilog="Example: [bold]synergai engines store --json[/bold]")
@on_gateway
def show_store(
    gateway: GatewayAddress,
    as_json: AsJson = False,
) -> None:
    """List the versions in the gateway's store, and which workers have them."""
    content = gateway.call(lambda client: client.stored_engines())
    if as_json:
        print_json(content)
    elif content.engines:
        print_store(content)
    else:
        typer.echo("the store has no engine; push one with 'synergai engines push'")


@app.command(
    epilog="Example: [bold]synergai engines place resnet50 --version 2 --place label=line-3[/bold]"
)
@on_gateway
def place(
    gateway: GatewayAddress,
    engine: Stored,
    version: StoredVersion,
    place: Places = None,
) -> None:
    """Change which workers fetch a version; those that are no longer selected remove it."""
    stored = gateway.call(lambda client: client.place_engine(engine, version, place or ()))
    typer.echo(f"version {version} of {engine} is placed on {_placement_text(stored)}")


@app.command(epilog="Example: [bold]synergai engines remove resnet50 --version 1[/bold]")
@on_gateway
def remove(
    gateway: GatewayAddress,
    engine: Stored,
    version: StoredVersion,
) -> None:
    """Remove a version from the gateway's store, and from the workers that have fetched it."""
    freed = gateway.call(lambda client: client.remove_engine(engine, version))
    typer.echo(f"version {version} of {engine} is removed, which freed {decimal(freed)}")


def print_store(content: StoreContent) -> None:
    columns = ("engine", "version", "digest", "size", "placement", "workers")
    print_table(columns, map(_stored_row, content.engines))
    typer.echo(f"\n{decimal(content.used_bytes)} used")


def _stored_row(stored: StoredEngine) -> tuple[str | Text, ...]:
    return (
        stored.engine,
        str(stored.version),
        stored.digest[:_DIGEST_CHARS],
        decimal(stored.size),
        _placement_text(stored),
        cut_text(stored.fault, "red")
        if stored.fault
        else Text("\n").join(
            Text(f"{worker}: ").append(placed_text(placed))
            for worker, placed in sorted(stored.workers.items())
        ),
    )


def _placement_text(stored: StoredEngine) -> str:
    return " or ".join(stored.placement) or "every worker with its backend"
