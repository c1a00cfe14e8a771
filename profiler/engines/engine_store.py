"""``synergai engines push``, ``store``, ``place`` and ``remove``: the store of a gateway."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from synergai.cli.fleet import placed_text
from synergai.cli.gateway_client import GatewayAddress, on_gateway
from synergai.cli.options import AsJson
from synergai.cli.output import cut_text, print_json, print_table

if TYPE_CHECKING:
    from synergai.client.client import Client
    from synergai.client.store import StoreContent, StoredEngine

app: Final = typer.Typer()

_DIGEST_CHARS: Final = 12

Stored = Annotated[str, typer.Argument(metavar="ENGINE", help="Name of an engine in the store.")]
Version = Annotated[int, typer.Option("--version", metavar="N", help="Its version.")]
Place = Annotated[
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
    place: Place = None,
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
        version = gateway.call(lambda client: first_version(client, engine), engine)
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

        stored = gateway.call(run, engine)
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
    version: Version,
    place: Place = None,
) -> None:
    """Change which workers fetch a version; those that are no longer selected remove it."""
    stored = gateway.call(lambda client: client.place_engine(engine, version, place or ()), engine)
    typer.echo(f"version {version} of {engine} is placed on {_placement_text(stored)}")


@app.command(epilog="Example: [bold]synergai engines remove resnet50 --version 1[/bold]")
@on_gateway
def remove(
    gateway: GatewayAddress,
    engine: Stored,
    version: Version,
) -> None:
    """Remove a version from the gateway's store, and from the workers that have fetched it."""
    freed = gateway.call(lambda client: client.remove_engine(engine, version), engine)
    typer.echo(f"version {version} of {engine} is removed, which freed {decimal(freed)}")


def print_store(content: StoreContent) -> None:
    """Print a table of the versions."""
    columns = ("engine", "version", "digest", "size", "placement", "workers")
    print_table(columns, map(_row, content.engines))
    used = decimal(content.used_bytes)
    limit = f" of {decimal(content.budget_bytes)}" if content.budget_bytes else ""
    typer.echo(f"\n{used}{limit} used")


def _row(stored: StoredEngine) -> tuple[str | Text, ...]:
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
