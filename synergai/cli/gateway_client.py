"""The gateway that a command calls, the options that name it, and ``synergai context``.

A context names a gateway, with the files that its connections need. It has addresses and paths
only: the token stays in its own file. The context in use applies to commands that are given no
target, neither by an option nor by a variable, so that its token is never sent to another gateway.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
import typer
from msgspec.structs import astuple

from synergai.cli.options import AsJson, Target
from synergai.cli.output import print_json, print_table
from synergai.client.target import (
    DEFAULT_TARGET,
    TOKEN_VARIABLE,
    cells_of,
    connection,
    default_tls_ca,
    default_token_file,
)
from synergai.errors import InvalidInput, NotFound, SynergaiError
from synergai.names import validate_name
from synergai.runtime.addresses import check_target
from synergai.runtime.files import StateFile
from synergai.runtime.paths import contexts_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from synergai.client.client import Client
    from synergai.client.target import ConnectionOptions


ResultT = TypeVar("ResultT")


class GatewayAccess(NamedTuple):
    """A target, and the files that encrypt and authenticate the connection to it."""

    target: str
    tls_ca: Path | None = None
    token_file: Path | None = None

    def connection(self) -> ConnectionOptions:
        """Return the arguments for a client."""
        return connection(self.tls_ca, self.token_file)


class GatewayAddress(NamedTuple):
    """A gateway, or the cells of a map, as the option of a command names them."""

    target: Target = ""

    def resolved(self) -> GatewayAccess:
        """Return the target with its files, which the environment names.

        Without a target, it is that of the context in use, which adds its files.
        """
        tls_ca, token_file = default_tls_ca(), default_token_file()
        context = None if self.target else context_in_use()
        if context is None:
            return GatewayAccess(self.target or DEFAULT_TARGET, tls_ca, token_file)
        if context.token_file and not (token_file or os.environ.get(TOKEN_VARIABLE)):
            token_file = Path(context.token_file)
        if context.tls_ca and tls_ca is None:
            tls_ca = Path(context.tls_ca)
        return GatewayAccess(context.target, tls_ca, token_file)

    def call(self, operation: Callable[[Client], Awaitable[ResultT]], engine: str = "") -> ResultT:
        """Open a client, await `operation` with it and return its result.

        Args:
            engine: name of the engine that decides on the cell; empty if only one is meant.
        """
        # Imported here to keep it out of `--help`.
        import uvloop

        from synergai.client.target import cell_of, cells_of

        access = self.resolved()
        cells = cells_of(access.target)
        if engine and len(cells) > 1:
            name = cell_of(cells, engine)
            if not name:
                raise InvalidInput(f"none of the cells {', '.join(cells)} serves {engine!r}")
            cells = {name: cells[name]}
        if len(cells) > 1:
            raise InvalidInput(
                f"--target names the cells {', '.join(cells)}, and this needs one: write "
                f"{access.target}:{next(iter(cells))}"
            )
        [cell] = cells.values()
        return uvloop.run(_call(access, cell.gateways, operation))

    def call_each(
        self,
        operation: Callable[[Client], Awaitable[ResultT]],
        show: Callable[[ResultT], None],
        *,
        as_json: bool,
    ) -> None:
        """Like `call`, for every cell; print the results as JSON, or show them below its name.

        Raises:
            typer.Exit: a cell failed, which standard error says.
        """
        # As above.
        import uvloop

        from synergai.cli.output import print_json
        from synergai.client.target import cells_of

        access = self.resolved()
        cells = cells_of(access.target)

        async def run() -> list[ResultT | BaseException]:
            calls = [_call(access, cell.gateways, operation) for cell in cells.values()]
            return await asyncio.gather(*calls, return_exceptions=len(cells) > 1)

        results: dict[str, ResultT] = {}
        for name, outcome in zip(cells, uvloop.run(run()), strict=True):
            if isinstance(outcome, SynergaiError):
                typer.echo(f"cell {name}: {outcome}", err=True)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results[name] = outcome
        if as_json:
            print_json(results.get("", results))
        else:
            for name, result in results.items():
                if name:
                    typer.echo(f"# cell {name}")
                show(result)
        if len(results) < len(cells):
            raise typer.Exit(1)


def complete_engine(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the served engines whose names begin so; none if the gateway does not answer soon."""
    address = GatewayAddress(ctx.params.get("target") or "")

    async def names(client: Client) -> set[str]:
        async with asyncio.timeout(_COMPLETION_S):
            return {engine.name for worker in await client.workers() for engine in worker.engines}

    try:
        served = address.call(names)
    except (SynergaiError, OSError):  # a completion has nowhere to say why
        return []
    return sorted({name.partition("/")[0] for name in served if name.startswith(incomplete)})


_COMPLETION_S: Final = 2.0
ServedEngine = Annotated[
    str,
    typer.Argument(
        metavar="ENGINE", help="Name of a served engine.", autocompletion=complete_engine
    ),
]


async def _call(
    access: GatewayAccess, target: str, operation: Callable[[Client], Awaitable[ResultT]]
) -> ResultT:
    # As above.
    from synergai.client.client import Client

    async with Client(target, **access.connection()) as client:
        return await operation(client)


def on_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options of its groups, of which a gateway is the first.

    A group is a parameter that is a `NamedTuple` of options. The gateway's options are shown last.
    """
    hints = get_type_hints(command, include_extras=True)
    gateway, *others = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for each in (*others, gateway):
        kind = hints[each.name]
        if isinstance(kind, type) and issubclass(kind, tuple):
            groups[each.name] = kind
            parameters += _options(kind)
        else:
            keyword_only = inspect.Parameter.KEYWORD_ONLY
            parameters.append(each.replace(annotation=kind, kind=keyword_only))

    def run(**options: Any) -> None:
        made = {
            name: group(**{field: options.pop(field) for field in group._fields})
            for name, group in groups.items()
        }
        command(**made, **options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=group._field_defaults[name],
            annotation=annotation,
        )
        for name, annotation in get_type_hints(group, include_extras=True).items()
    ]


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


context_app: Final = typer.Typer(
    help="Save gateways by name, with certificate authority and token.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@context_app.command(
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


@context_app.command(epilog="Example: [bold]synergai context use lab[/bold]")
def use(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Default: none.")] = "",
) -> None:
    """Choose the context that commands use; without a name, none."""
    with _changing(name) as contexts:
        contexts.in_use = name
    typer.echo(f"commands call {contexts.known[name].target} now" if name else "none is in use")


@context_app.command(epilog="Example: [bold]synergai context remove lab[/bold]")
def remove(name: _Name) -> None:
    """Remove a context."""
    with _changing(name) as contexts:
        del contexts.known[name]
        contexts.in_use = "" if contexts.in_use == name else contexts.in_use


@context_app.command("list", epilog="Example: [bold]synergai context list[/bold]")
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
