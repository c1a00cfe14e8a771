"""The gateway that a command calls, and the options that name it."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from synergai.cli.options import Target
from synergai.client.target import DEFAULT_TARGET, connection
from synergai.errors import InvalidInput, SynergaiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.client.client import Client


ResultT = TypeVar("ResultT")


class GatewayAddress(NamedTuple):
    """A gateway, or the cells of a map, as the option of a command names them."""

    target: Target = DEFAULT_TARGET

    def call(self, operation: Callable[[Client], Awaitable[ResultT]], engine: str = "") -> ResultT:
        """Open a client, await `operation` with it and return its result.

        Args:
            engine: name of the engine that decides on the cell; empty if only one is meant.
        """
        # Imported here to keep it out of `--help`.
        import uvloop

        from synergai.client.target import cell_of, cells_of

        cells = cells_of(self.target)
        if engine and len(cells) > 1:
            name = cell_of(cells, engine)
            if not name:
                raise InvalidInput(f"none of the cells {', '.join(cells)} serves {engine!r}")
            cells = {name: cells[name]}
        if len(cells) > 1:
            raise InvalidInput(
                f"--target names the cells {', '.join(cells)}, and this needs one: write "
                f"{self.target}:{next(iter(cells))}"
            )
        [cell] = cells.values()
        return uvloop.run(_call(cell.gateways, operation))

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

        cells = cells_of(self.target)

        async def run() -> list[ResultT | BaseException]:
            calls = [_call(cell.gateways, operation) for cell in cells.values()]
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


ServedEngine = Annotated[str, typer.Argument(metavar="ENGINE", help="Name of a served engine.")]


async def _call(target: str, operation: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
    # As above.
    from synergai.client.client import Client

    async with Client(target, **connection()) as client:
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
