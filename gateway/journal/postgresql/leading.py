"""How a gateway comes to lead a database, and keeps leading it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.journal.errors import JournalBroken
from gateway.journal.postgresql.leadership import LEASE_S, LeaderCandidate

if TYPE_CHECKING:
    from gateway.gateway_settings import GatewaySettings
    from gateway.journal.journal import Journal
    from gateway.journal.postgresql.store import PostgresqlStore
    from synergai.runtime.clock import Clock

StandingBy: TypeAlias = Callable[[Callable[[], str]], AbstractAsyncContextManager[None]]

_POLL_S: Final = 0.25
"""Interval at which a standby tries to lead."""
_WILDCARDS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared only


async def lead(config: GatewaySettings, clock: Clock, standing_by: StandingBy) -> PostgresqlStore:
    """Become the leader of the journal, once no other gateway leads it; return its store.

    Args:
        standing_by: what is done until then; gets a function that returns the leader's address.
    """
    # With one thread, closing waits for a step that was cancelled.
    with ThreadPoolExecutor(1, "leadership") as thread:
        step = partial(asyncio.get_running_loop().run_in_executor, thread)
        candidate: LeaderCandidate = await step(
            partial(
                LeaderCandidate,
                config.journal,
                config.state,
                clock,
                advertised(config.listen),
                insecure=config.insecure,
            )
        )
        store: PostgresqlStore | None = None
        try:
            store = await step(candidate.lead)
            if store is None:
                leader: str = await step(candidate.leader)
                async with standing_by(lambda: leader):
                    # Waiting for the lock in the server would keep it from cleaning up tables.
                    while (store := await step(candidate.lead)) is None:
                        await asyncio.sleep(_POLL_S)
                        leader = await step(candidate.leader)
        finally:
            if store is None:
                await step(candidate.close)
    return store


async def keep_leading(journal: Journal) -> None:
    """Use the leader's session so often that the server keeps it, as long as this loop runs."""
    with suppress(JournalBroken):
        while True:
            await journal.confirm()
            await asyncio.sleep(LEASE_S / 4)


def advertised(listen: str) -> str:
    """Return the address under which other machines may reach one that is listened on."""
    host, _, port = listen.rpartition(":")
    return f"{socket.gethostname() if host in _WILDCARDS else host}:{port}"
