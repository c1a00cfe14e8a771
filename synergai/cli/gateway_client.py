"""The gateway that a command calls, and the options that name it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from synergai.cli.options import Target
from synergai.client.target import DEFAULT_TARGET, connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.client.client import Client


ResultT = TypeVar("ResultT")


class GatewayAddress(NamedTuple):
    """A gateway, as the option of a command names it."""

    target: Target = DEFAULT_TARGET

    def call(self, operation: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """Open a client, await `operation` with it and return its result."""
        # Imported here to keep it out of `--help`.
        import uvloop

        from synergai.client.client import Client

        async def run() -> ResultT:
            async with Client(self.target, **connection()) as client:
                return await operation(client)

        return uvloop.run(run())


ServedEngine = Annotated[
    str,
    typer.Argument(
        metavar="ENGINE",
        help="Name of a served engine: NAME, NAME/2 for a version, or NAME/2.int8 for a variant.",
    ),
]


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
