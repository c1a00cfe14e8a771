"""What a server of PostgreSQL has to be, so that nothing acknowledged is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.journal.postgresql.session import where
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from gateway.journal.postgresql.session import DatabaseSession

_OLDEST: Final = 140_000
"""Ends sessions that are idle (``idle_session_timeout``), so that a hung leader is replaced."""


def check_server(session: DatabaseSession) -> None:
    """Check the server and the way to it."""
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
