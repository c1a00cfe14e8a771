"""A session of PostgreSQL for code that blocks, such as the journal's writer thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from gateway.journal.postgresql.schema import SCHEMA
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from gateway.journal.store import Row

T = TypeVar("T")

_CONNECT_S: Final = 10.0
_STATEMENT_S: Final = 7.0
"""Time after which a statement has failed: a leader without its database lets its agents go."""
_CLOSE_S: Final = 2.0
_OLDEST: Final = 140_000
"""Ends sessions that are idle (``idle_session_timeout``), so that a hung leader is replaced."""


class DatabaseSession:
    """A session with an event loop of its own; one thread at a time uses it."""

    def __init__(self, url: str) -> None:
        try:
            # Imported on demand: it is an extra, and costs memory.
            import asyncpg
        except ModuleNotFoundError:
            raise InvalidInput(
                f"--journal {url} needs asyncpg, which is not installed; "
                f"{pip_install('postgresql')}"
            ) from None
        self.url = url
        self._postgres_error: type[Exception] = asyncpg.PostgresError
        self._loop = asyncio.new_event_loop()
        try:
            self._connection: Any = self._loop.run_until_complete(
                asyncpg.connect(
                    url,
                    timeout=_CONNECT_S,
                    command_timeout=_STATEMENT_S,
                    server_settings={"application_name": "synergai gateway"},
                )
            )
        except BaseException as error:
            self._loop.close()
            if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                raise self.failure(error) from error
            raise

    def failure(self, error: Exception) -> SynergaiError:
        """Return what to tell people of a failed statement or connection."""
        if isinstance(error, SynergaiError):
            return error
        place = where(self.url)
        code = str(getattr(error, "sqlstate", ""))
        if code.startswith("28"):
            return InvalidInput(
                f"{place} refuses the user: {error}. Name the user in --journal, and the password "
                "in the file that PGPASSFILE names, or in PGPASSWORD"
            )
        if code == "42501":
            return InvalidInput(
                f"the user lacks rights in {place}: {error}. Let the user own the database, or "
                "create the schema for it: CREATE SCHEMA synergai AUTHORIZATION user"
            )
        if code.startswith("3D"):
            return InvalidInput(f"{place}: {error}; create the database first")
        if isinstance(error, TimeoutError):
            return Unavailable(f"{place} does not answer in {_CONNECT_S:.0f} s")
        text = getattr(error, "strerror", None) or error
        return Unavailable(f"{place} cannot be used: {text}")

    @property
    def process_ids(self) -> tuple[int, int]:
        """Ids of the server's process: the one that the connection began with, the current one."""
        return self._connection.get_server_pid(), self.value("SELECT pg_backend_pid()")

    @property
    def ended(self) -> bool:
        """Whether the server or the network has ended the session."""
        return bool(self._connection.is_closed())

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, perhaps a failed one."""
        return not self.ended and bool(self._connection.is_in_transaction())

    def abandon(self) -> None:
        """End a session whose server does not answer."""
        self._connection.terminate()

    def script(self, statements: str) -> str:
        """Execute statements without parameters; return the status of the last one."""
        return str(self._run(self._connection.execute(statements)))

    def fetch(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Execute a statement and return its rows."""
        return [tuple(row) for row in self._run(self._connection.fetch(statement, *parameters))]

    def value(self, statement: str, *parameters: Any) -> Any:
        """Execute a statement and return the first column of its first row, None without a row."""
        return self._run(self._connection.fetchval(statement, *parameters))

    def fetch_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement once for each row of parameters, with one round trip for many."""
        self._run(self._connection.executemany(statement, rows))

    def close(self) -> None:
        """End the session, from any thread."""
        closing = threading.Thread(target=self._close, name="closing the journal")
        closing.start()
        closing.join()

    def _close(self) -> None:
        with suppress(OSError, TimeoutError, self._postgres_error):
            self._run(self._connection.close(timeout=_CLOSE_S))
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)


def where(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] or "this machine's socket"
    return f"PostgreSQL at {host}{parts.path}"


def open_session(url: str, *, insecure: bool) -> DatabaseSession:
    """Open a session in the journal's schema, with a server and a connection that suit."""
    session = DatabaseSession(url)
    try:
        check_server(session)
        if not insecure:
            check_encryption(session)
        session.script(f"SET search_path = {SCHEMA}")
    except BaseException as error:
        session.close()
        if isinstance(error, Exception):
            raise session.failure(error) from error
        raise
    return session


def check_server(session: DatabaseSession) -> None:
    place = where(session.url)
    began, current = session.process_ids
    if began != current:
        raise InvalidInput(
            f"a connection pooler answers for {place}: its sessions change, and with them the "
            "lock of the leader. Name the server itself in --journal"
        )
    [(version, standby, *settings)] = session.fetch(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), "
        "current_setting('synchronous_commit'), current_setting('fsync')"
    )
    if version < _OLDEST:
        raise InvalidInput(
            f"{place} has version {version // 10_000}; the journal needs 14 or later"
        )
    if standby:
        raise InvalidInput(
            f"{place} is a replica and cannot be written; name the primary, or all hosts with "
            "?target_session_attrs=read-write"
        )
    for name, setting in zip(("synchronous_commit", "fsync"), settings, strict=True):
        if setting == "off":
            raise InvalidInput(
                f"{place} has {name} = off: it would lose accepted jobs in a crash. Set it to on"
            )


def check_encryption(session: DatabaseSession) -> None:
    """Check that what other machines could read is encrypted."""
    encrypted_or_local = session.value(
        "SELECT ssl OR client_addr IS NULL OR client_addr <<= '127.0.0.0/8' OR client_addr = '::1' "
        "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE pid = pg_backend_pid()"
    )
    if not encrypted_or_local:
        raise InvalidInput(
            f"the connection to {where(session.url)} is not encrypted: add ?sslmode=verify-full to "
            "the URL, or accept the risk with --insecure"
        )
