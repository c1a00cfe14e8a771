"""How a gateway comes to lead a database, and keeps leading it."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.journal.errors import JournalBroken
from gateway.journal.postgresql.leadership import LEASE_S, Candidate
from gateway.journal.postgresql.session import where
from synergai.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.journal.journal import Journal
    from gateway.journal.postgresql.store import PostgresqlStore
    from synergai.runtime.clock import Clock

_WILDCARDS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared only


async def lead(url: str, directory: Path, clock: Clock, listen: str) -> PostgresqlStore:
    """Become the leader of a database; return its store.

    Args:
        listen: address for clients, which a standby tells them.

    Raises:
        Unavailable: the server cannot be reached, or another gateway leads.
        InvalidInput: the server does not suffice, or belongs to another cluster.
    """
    loop = asyncio.get_running_loop()
    # With one thread, closing waits for a step that was cancelled.
    with ThreadPoolExecutor(1, "leadership") as thread:
        address = advertised(listen)
        candidate = await loop.run_in_executor(thread, Candidate, url, directory, clock, address)
        store = None
        try:
            store = await loop.run_in_executor(thread, candidate.lead)
            leader = await loop.run_in_executor(thread, candidate.leader)
        finally:
            if store is None:
                await loop.run_in_executor(thread, candidate.close)
    if store is None:
        raise Unavailable(f"another gateway, {leader}, uses the journal in {where(url)}")
    return store


async def keep_leading(journal: Journal) -> None:
    """Use the leader's session so often that the server keeps it, as long as this loop runs."""
    with suppress(JournalBroken):
        while True:
            await journal.engines()
            await asyncio.sleep(LEASE_S / 4)


def advertised(listen: str) -> str:
    """Return the address under which other machines may reach one that is listened on."""
    host, _, port = listen.rpartition(":")
    return f"{socket.gethostname() if host in _WILDCARDS else host}:{port}"
