"""``synergai context``: gateways by name, with the files that their connections need.

A context has addresses and paths only: the token stays in its own file. The context in use applies
to commands that are given no target, neither by an option nor by a variable, so that its token is
never sent to another gateway.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from msgspec.structs import astuple

from synergai.cli.options import AsJson
from synergai.cli.output import print_json, print_table
from synergai.client.target import cells_of
from synergai.errors import NotFound
from synergai.names import validate_name
from synergai.runtime.addresses import check_target
from synergai.runtime.paths import contexts_file
from synergai.runtime.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Iterator


class Context(msgspec.Struct, frozen=True):
    """A gateway, and the files of its connections."""

    target: str
    tls_ca: str | None = None
    token_file: str | None = None


class _Contexts(msgspec.Struct):
    """Contexts by name, and the name of the one in use; empty for none."""

    in_use: str = ""
    known: dict[str, Context] = msgspec.field(default_factory=dict)


def context_in_use() -> Context | None:
    """Return the context that ``synergai context use`` has chosen; None without one."""
    contexts = _file().read() or _Contexts()
    return contexts.known.get(contexts.in_use)


@contextmanager
def _changing(name: str = "") -> Iterator[_Contexts]:
    """Let the block change the contexts; the one of this name must exist."""
    file = _file()
    file.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.locked():
        contexts = file.read() or _Contexts()
        if name and name not in contexts.known:
            known = ", ".join(contexts.known) or "none"
            raise NotFound(f"there is no context {name!r}; known: {known}")
        yield contexts
        file.write(contexts)


def _file() -> StateFile[_Contexts]:
    return StateFile(contexts_file(), _Contexts, "Remove it, and add the contexts again.")


app: Final = typer.Typer(
    help="Save gateways by name, with certificate authority and token.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@app.command(
    epilog="Example: [bold]synergai context add lab --target gateway.lan:8001 --tls-ca ca.pem "
    "--token-file lab.token[/bold]"
)
def add(
    name: _Name,
    target: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="As of the commands that call a gateway.")
    ],
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="Certificate authority (PEM) of the gateway's certificate; enables TLS.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="File with a bearer token.")
    ] = None,
) -> None:
    """Save a gateway, or change what was saved, and use it from now on.

    The files are not copied: the context has their paths.
    """
    validate_name(name, "context")
    for cell in cells_of(target).values():
        for each in cell.gateways.split(","):
            check_target(each)
    if target.startswith("@"):
        target = f"@{Path(target[1:]).absolute()}"
    paths = (str(path.absolute()) if path else None for path in (tls_ca, token_file))
    with _changing() as contexts:
        contexts.known[name] = Context(target, *paths)
    use(name)


@app.command(epilog="Example: [bold]synergai context use lab[/bold]")
def use(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Default: none.")] = "",
) -> None:
    """Choose the context that commands use; without a name, none."""
    with _changing(name) as contexts:
        contexts.in_use = name
    typer.echo(f"commands call {contexts.known[name].target} now" if name else "none is in use")


@app.command(epilog="Example: [bold]synergai context remove lab[/bold]")
def remove(name: _Name) -> None:
    """Remove a context."""
    with _changing(name) as contexts:
        del contexts.known[name]
        contexts.in_use = "" if contexts.in_use == name else contexts.in_use


@app.command("list", epilog="Example: [bold]synergai context list[/bold]")
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; a star marks the one in use."""
    contexts = _file().read() or _Contexts()
    if as_json:
        print_json(contexts)
        return
    rows = (
        ("*" if name == contexts.in_use else "", name, *(each or "" for each in astuple(context)))
        for name, context in contexts.known.items()
    )
    print_table(("", "context", "target", "authority", "token"), rows)
