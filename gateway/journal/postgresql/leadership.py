"""The leader among the gateways of a database: who may write, since when, and who comes next.

The leader holds an advisory lock of its session, which is the one that writes. A gateway that has
lost the lock has therefore lost the session as well, and its open transaction. Each leader raises
the epoch, and each transaction proves it first, by changing the row that has the epoch.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from gateway.journal.files import CLUSTER, DATABASE
from gateway.journal.postgresql.schema import CREATE_SCHEMA, CREATE_TABLES, SCHEMA, VERSION
from gateway.journal.postgresql.session import open_session, where
from gateway.journal.postgresql.store import PostgresqlStore
from gateway.journal.store import JournalBroken
from synergai.errors import InvalidInput
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.gateway_settings import GatewaySettings
    from gateway.journal.journal import Journal
    from synergai.runtime.clock import Clock

StandingBy: TypeAlias = Callable[[Callable[[], str]], AbstractAsyncContextManager[None]]

_log = logging.getLogger(__name__)

LEASE_S: Final = 3.5
"""Silence after which the server ends the leader's session: longer than its loop ever pauses."""
LOCK: Final = 0x53594E41
"""Number of the lock: "SYNA"."""
_NOTABLE_S: Final = 1.0
_POLL_S: Final = 0.25
"""Interval at which a standby tries to lead."""
_WILDCARDS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - compared only
_END_HUNG: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND objid = $1 AND datname = current_database() "
    "AND state = 'active' AND wait_event_type = 'Client' "
    "AND state_change < clock_timestamp() - make_interval(secs => $2)"
)
"""Ends the session of a leader that hangs within a command: while the server waits for the rest of
it, the timeouts of idle sessions do not run."""


class LeaderCandidate:
    """A gateway's session with the database, until it leads. Every method blocks.

    Args:
        directory: the gateway's state, which remembers its cluster.
        address: where clients find this gateway once it leads.
        insecure: accept a connection to another machine that is not encrypted.
    """

    def __init__(
        self, url: str, directory: Path, clock: Clock, address: str, *, insecure: bool = False
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._address = address
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._session = open_session(url, insecure=insecure)
        try:
            self._check_cluster()
        except Exception as error:
            self._session.close()
            raise self._session.failure(error) from error

    def lead(self) -> PostgresqlStore | None:
        """Become the leader; return None while there is another one."""
        try:
            if not self._session.value("SELECT pg_try_advisory_lock($1)", LOCK):
                self._session.fetch(_END_HUNG, (LOCK, LEASE_S))
                return None
            lease = f"'{round(LEASE_S * 1000)}ms'"
            self._session.script(
                f"SET idle_session_timeout = {lease}; "
                f"SET idle_in_transaction_session_timeout = {lease}; "
                f"SET tcp_user_timeout = {lease}"
            )
            epoch = self._begin_epoch()
            return PostgresqlStore(self._session, self._clock, *epoch)
        except Exception as error:
            raise self._session.failure(error) from error

    def leader(self) -> str:
        """Return the address of the leader, as far as it is known."""
        try:
            return str(self._session.value("SELECT leader FROM gateway")) if self._exists() else ""
        except Exception as error:
            raise self._session.failure(error) from error

    def close(self) -> None:
        self._session.close()

    def _begin_epoch(self) -> tuple[int, str]:
        """Create missing tables, and begin the next epoch; return it, and the cluster."""
        session = self._session
        session.script("BEGIN")
        if not self._exists():
            if not session.value("SELECT to_regnamespace($1)", SCHEMA):
                session.script(CREATE_SCHEMA)
            session.script(CREATE_TABLES)
        _, remembered = self._check_cluster()
        [(last, drift_s)] = session.fetch(
            "SELECT unix, extract(epoch FROM clock_timestamp() - at)::float8 FROM gateway"
        )
        now = self._clock.unix_now()
        if last:
            self._follow_clock(now - last - drift_s)
        [(epoch, cluster)] = session.fetch(
            "UPDATE gateway SET epoch = greatest(epoch, $1) + 1, leader = $2, unix = $3, "
            "at = clock_timestamp() RETURNING epoch, cluster::text",
            (remembered, self._address, now),
        )
        session.script("COMMIT")
        write_atomic(self._directory / CLUSTER, f"{cluster} {epoch}\n", 0o600)
        return int(epoch), str(cluster)

    def _follow_clock(self, change_s: float) -> None:
        """Move the instants of unfinished jobs by how this clock differs from the last leader's."""
        self._session.fetch(
            "UPDATE jobs SET submitted_at = submitted_at + $1, dispatched_at = dispatched_at + $1 "
            "WHERE state <= 2",
            (change_s,),
        )
        if abs(change_s) > _NOTABLE_S:
            _log.warning(
                "the clock of this gateway differs by %+.0f s from that of the last leader: the "
                "deadlines of unfinished jobs move with it",
                change_s,
            )

    def _exists(self) -> bool:
        return self._session.value("SELECT to_regclass($1)", f"{SCHEMA}.gateway") is not None

    def _check_cluster(self) -> tuple[str, int]:
        """Check that database and state directory belong together.

        Returns what the directory remembers: the cluster and the last epoch, if any.
        """
        path, place = self._directory / CLUSTER, where(self._session.url)
        if (self._directory / DATABASE).exists():
            raise InvalidInput(
                f"{self._directory} has a journal of its own, {DATABASE}, whose jobs the gateway "
                f"would not run: choose another directory (--state), or leave out --journal"
            )
        remembered, _, epoch = path.read_text().partition(" ") if path.exists() else ("", "", "0")
        cluster = ""
        if self._exists():
            [(version, cluster)] = self._session.fetch("SELECT version, cluster::text FROM gateway")
            if version != VERSION:
                raise InvalidInput(
                    f"the journal in {place} has version {version}; this gateway needs version "
                    f"{VERSION}"
                )
        if remembered and not cluster:
            raise JournalBroken(
                f"{place} has no journal, but {self._directory} was used with one. Name its "
                f"database in --journal, or restore it; to start without its jobs, remove {path}"
            )
        if remembered and remembered != cluster:
            raise InvalidInput(
                f"{place} has the journal of another cluster of gateways than {self._directory}: "
                "choose another database (--journal), or another directory (--state)"
            )
        return remembered, int(epoch)


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
