"""The gateway that a command calls, and the options that name it."""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

import typer

from synergai.cli.options import Target, TlsCa, TokenFile
from synergai.client.target import DEFAULT_TARGET, TOKEN_VARIABLE
from synergai.errors import InvalidInput, SynergaiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.client.client import Client

ResultT = TypeVar("ResultT")


class GatewayAddress(NamedTuple):
    """A gateway, or the cells of a map, as the options of a command name them."""

    target: Target = ""
    tls_ca: TlsCa = None
    token_file: TokenFile = None

    def resolved(self) -> GatewayAddress:
        """Return what the context in use adds if no target is given."""
        from synergai.cli.contexts import context_in_use  # needed by commands that call only

        context = None if self.target else context_in_use()
        if context is None:
            return self._replace(target=self.target or DEFAULT_TARGET)
        has_token = self.token_file or os.environ.get(TOKEN_VARIABLE)
        return GatewayAddress(
            context.target,
            self.tls_ca or (Path(context.tls_ca) if context.tls_ca else None),
            self.token_file if has_token or not context.token_file else Path(context.token_file),
        )

    def call(self, operation: Callable[[Client], Awaitable[ResultT]], engine: str = "") -> ResultT:
        """Open a client, await `operation` with it and return its result.

        Args:
            engine: name of the engine that decides on the cell; empty if only one is meant.
        """
        # Imported here to keep it out of `--help`.
        import uvloop

        from synergai.client.target import cell_of, cells_of

        address = self.resolved()
        cells = cells_of(address.target)
        if engine and len(cells) > 1:
            name = cell_of(cells, engine)
            if not name:
                raise InvalidInput(f"none of the cells {', '.join(cells)} serves {engine!r}")
            cells = {name: cells[name]}
        if len(cells) > 1:
            raise InvalidInput(
                f"--target names the cells {', '.join(cells)}, and this needs one: write "
                f"{address.target}:{next(iter(cells))}"
            )
        [cell] = cells.values()
        return uvloop.run(_call(address, cell.gateways, operation))

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

        address = self.resolved()
        cells = cells_of(address.target)

        async def run() -> list[ResultT | BaseException]:
            calls = [_call(address, cell.gateways, operation) for cell in cells.values()]
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
    given: dict[str, Any] = {name: ctx.params.get(name) for name in GatewayAddress._fields}
    address = GatewayAddress(**given)

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
    address: GatewayAddress, target: str, operation: Callable[[Client], Awaitable[ResultT]]
) -> ResultT:
    # As above.
    from synergai.client.client import Client
    from synergai.client.target import connection

    async with Client(target, **connection(address.tls_ca, address.token_file)) as client:
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
