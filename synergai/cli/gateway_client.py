"""The gateway that a command calls, and the options that name it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, get_type_hints

from synergai.cli.options import Target, TlsCa, TokenFile
from synergai.client.target import DEFAULT_TARGET

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from synergai.client.client import Client

ResultT = TypeVar("ResultT")


class GatewayAddress(NamedTuple):
    """A gateway, as the options of a command name it."""

    target: str
    tls_ca: Path | None = None
    token_file: Path | None = None

    def call(self, operation: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """Open a client, await `operation` with it and return its result."""
        # Imported here to keep them out of `--help`.
        import uvloop

        from synergai.client.client import Client
        from synergai.client.target import connection

        async def run() -> ResultT:
            credentials = connection(self.tls_ca, self.token_file)
            async with Client(self.target, **credentials) as client:
                return await operation(client)

        return uvloop.run(run())


_OPTIONS: Final = {
    "target": (Target, DEFAULT_TARGET),
    "tls_ca": (TlsCa, None),
    "token_file": (TokenFile, None),
}


def on_gateway(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command`, whose first parameter is a gateway, with the options that name one."""

    def run(target: str, tls_ca: Path | None, token_file: Path | None, **options: object) -> None:
        command(GatewayAddress(target, tls_ca, token_file), **options)

    hints = get_type_hints(command, include_extras=True)
    _, *own = inspect.signature(command).parameters.values()
    parameters = [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in own
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
