"""What commands ask a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from synergai.client.client import Client

AnswerT = TypeVar("AnswerT")


def ask(
    target: str, tls_ca: Path | None, question: Callable[[Client], Awaitable[AnswerT]]
) -> AnswerT:
    """What a question to the gateway at `target` brings, which is asked with a client of it.

    Args:
        target: the gateway's ``host:port``.
        tls_ca: authority that its certificate has to be of; without one, nothing is encrypted.
        question: given the client.

    Raises:
        SynergaiError: as the question says; or the authority's file is no good.
    """
    # Imported late: help is printed without them.
    import uvloop

    from synergai.client.client import Client

    async def asked() -> AnswerT:
        async with Client(target, tls_ca=tls_ca) as client:
            return await question(client)

    return uvloop.run(asked())
