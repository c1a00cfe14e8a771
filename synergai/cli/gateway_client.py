"""Run one operation against a gateway from a synchronous command."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from synergai.client.client import Client

ResultT = TypeVar("ResultT")


def call_gateway(
    target: str,
    tls_ca: Path | None,
    token_file: Path | None,
    operation: Callable[[Client], Awaitable[ResultT]],
) -> ResultT:
    """Open a client, await `operation` with it and return its result.

    Args:
        target: the gateway's ``host:port``.
        tls_ca: certificate authority (PEM) of the gateway's certificate; None for plaintext.
        token_file: file with a bearer token; None for that of the environment.
        operation: called with the client.

    Raises:
        SynergaiError: the operation failed, or a file cannot be used.
    """
    # Imported here to keep them out of `--help`.
    import uvloop

    from synergai.client.client import Client
    from synergai.client.target import connection

    async def run() -> ResultT:
        async with Client(target, **connection(tls_ca, token_file)) as client:
            return await operation(client)

    return uvloop.run(run())
