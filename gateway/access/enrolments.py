"""Enrolled workers and enrolment tokens, in a database of the gateway's state directory.

The gateway and its commands use the database at the same time. It holds hashes only: tokens and
secrets are random, so that a plain SHA-256 cannot be inverted.

An agent chooses its secret and stores it before it presents a token. A reply that is lost thus
leaves an agent that is enrolled and knows its secret.

Version 2 has checksums on its pages. Only a gateway adds them to a file of version 1, which has
the same tables: a gateway of the version before, which would write without checksums, may be
running when a command of this version uses its file.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import apsw
from msgspec import Struct

from synergai.errors import InvalidInput, NotFound, Unauthenticated, Unavailable
from synergai.runtime import database
from synergai.runtime.database_file import DatabaseFile
from synergai.runtime.ownership import own_like

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Row: TypeAlias = tuple[Any, ...]
"""Row of a STRICT table: each column has the type of the schema."""

FILE: Final = "workers.db"
APPLICATION_ID: Final = 0x53594E57  # "SYNW"; identifies our databases
SCHEMA_VERSION: Final = 1
_BUSY_TIMEOUT_MS: Final = 5000
_KEPT_S: Final = 7 * 86_400.0
"""Time after its expiry at which a token is forgotten; until then, its use is refused by name."""

_SCHEMA: Final = f"""
CREATE TABLE tokens (
  hash         BLOB PRIMARY KEY,
  worker_id    TEXT NOT NULL,
  worker_class TEXT NOT NULL,
  expires_at   REAL NOT NULL,
  used_by      TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
  id           TEXT PRIMARY KEY,
  worker_class TEXT NOT NULL,
  secret       BLOB NOT NULL,
  enrolled_at  REAL NOT NULL,
  revoked_at   REAL
) STRICT, WITHOUT ROWID;

PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class EnrolledWorker(Struct, frozen=True, kw_only=True):
    """A worker that has exchanged a token for a secret.

    Attributes:
        id: its id.
        worker_class: its class.
        secret_sha256: SHA-256 of its secret.
        enrolled_at: when it enrolled, in seconds since the epoch.
        revoked_at: when it was revoked; None if it was not.
    """

    id: str
    worker_class: str
    secret_sha256: bytes
    enrolled_at: float
    revoked_at: float | None

    def is_proved_by(self, worker_class: str, secret_sha256: bytes) -> bool:
        """Return whether class and secret are those of this worker, which is not revoked."""
        return (
            self.revoked_at is None
            and self.worker_class == worker_class
            and hmac.compare_digest(self.secret_sha256, secret_sha256)
        )


class EnrolmentsDamaged(Unavailable):
    """The database of enrolled workers is damaged.

    Args:
        path: the database.
        fault: what is wrong with it.
    """

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(
            f"the enrolled workers in {path} cannot be read, the file is damaged: {fault}. Stop "
            "the gateway and replace the file by a copy; or move it away, and enrol the workers "
            "again with 'synergai gateway enroll'"
        )
        self.fault = fault


class EnrolmentStore(DatabaseFile):
    """Database of enrolled workers and tokens; a context manager that closes it.

    Args:
        state: state directory of the gateway.

    Raises:
        NotFound: on construction, if the directory does not exist.
        InvalidInput: on construction, if the file is of another program or version.
        Unavailable: the file cannot be read or written; so do all methods.
        EnrolmentsDamaged: the file is damaged; so do all methods.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        if not state.is_dir():
            raise NotFound(
                f"there is no state directory {state}: name the gateway's with --state, for a "
                "service /var/lib/synergai-gateway"
            )
        with self._translated():
            _create(self._path)
            self._connection = database.connect(self._path)
        try:
            with self._translated():
                self._connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
                self._connection.pragma("synchronous", "full")
                self._create_or_check()
                self.check()
                self._data_version = self._connection.pragma("data_version")
        except BaseException:
            self.close()
            raise

    # --- tokens -----------------------------------------------------------------------------

    def issue(self, worker_id: str, worker_class: str, expires_at: float, now: float) -> str:
        """Return a new enrolment token; only its hash is stored.

        Args:
            worker_id: the only worker that may use it; empty for any that is not known.
            worker_class: its class; empty for any.
            expires_at: end of its validity, in seconds since the epoch.
            now: the current time.
        """
        token = secrets.token_urlsafe(32)
        with self._transaction():
            self._connection.execute("DELETE FROM tokens WHERE expires_at < ?", (now - _KEPT_S,))
            self._connection.execute(
                "INSERT INTO tokens (hash, worker_id, worker_class, expires_at) "
                "VALUES (?, ?, ?, ?)",
                (sha256(token), worker_id, worker_class, expires_at),
            )
        return token

    def enrol(
        self, token: str, worker_id: str, worker_class: str, secret_sha256: bytes, now: float
    ) -> None:
        """Use a token for a worker, and record its secret, in one transaction.

        Raises:
            Unauthenticated: the token is unknown, expired, used, or for another worker; or the
                worker was enrolled before and the token is not for its id.
        """
        with self._transaction():
            row: Row | None = self._connection.execute(
                "SELECT worker_id, worker_class, expires_at, used_by FROM tokens WHERE hash = ?",
                (sha256(token),),
            ).fetchone()
            known = self._connection.execute(
                "SELECT 1 FROM workers WHERE id = ?", (worker_id,)
            ).fetchone()
            if problem := _problem(row, worker_id, worker_class, now, known=known is not None):
                raise Unauthenticated(
                    f"{problem}; create another one on the gateway's host with 'synergai gateway "
                    f"enroll --worker-id {worker_id}'"
                )
            self._connection.execute(
                "UPDATE tokens SET used_by = ? WHERE hash = ?", (worker_id, sha256(token))
            )
            self._connection.execute(
                "INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?, NULL)",
                (worker_id, worker_class, secret_sha256, now),
            )

    # --- workers ----------------------------------------------------------------------------

    def workers(self) -> list[EnrolledWorker]:
        """Return all workers, revoked ones included, by id."""
        with self._translated():
            # Before the rows: a change in between is reported again rather than lost.
            self._data_version = self._connection.pragma("data_version")
            rows: list[Row] = self._connection.execute(
                "SELECT id, worker_class, secret, enrolled_at, revoked_at FROM workers ORDER BY id"
            ).fetchall()
        return [
            EnrolledWorker(
                id=worker_id,
                worker_class=worker_class,
                secret_sha256=secret,
                enrolled_at=enrolled_at,
                revoked_at=revoked_at,
            )
            for worker_id, worker_class, secret, enrolled_at, revoked_at in rows
        ]

    def revoke(self, worker_id: str, now: float) -> None:
        """Revoke a worker's secret; idempotent.

        Raises:
            NotFound: it is not enrolled.
        """
        with self._transaction():
            found = self._connection.execute(
                "UPDATE workers SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING 1",
                (now, worker_id),
            ).fetchall()
            if not found:
                raise NotFound(f"there is no enrolled worker {worker_id!r}")

    # --- internals --------------------------------------------------------------------------

    def _create_or_check(self) -> None:
        if self._path.stat().st_size == 0:
            database.expect_checksums(self._connection)
        with self._transaction():
            application_id, version = (
                self._connection.pragma(name) for name in ("application_id", "user_version")
            )
            if application_id == APPLICATION_ID and version == SCHEMA_VERSION:
                return
            if self._connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
                raise InvalidInput(f"{self._path} is of another program or version")
            self._connection.execute(_SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated(), database.transaction(self._connection, writes=True):
            yield

    def _damaged(self, fault: str) -> EnrolmentsDamaged:
        return EnrolmentsDamaged(self._path, fault)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            if database.is_damage(error):
                raise self._damaged(database.describe(error)) from error
            raise Unavailable(f"{self._path} cannot be used: {error}") from error
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be used: {error.strerror}") from error


def sha256(text: str) -> bytes:
    """Return the SHA-256 of a token or secret."""
    return hashlib.sha256(text.encode()).digest()


def _problem(row: Row | None, worker_id: str, worker_class: str, now: float, *, known: bool) -> str:
    """Return why a token cannot be used; empty if it can."""
    if row is None:
        return "the enrolment token is unknown"
    for_id, for_class, expires_at, used_by = row
    if used_by:
        return f"the enrolment token was used by worker {used_by!r}"
    if expires_at <= now:
        return "the enrolment token has expired"
    if for_id not in ("", worker_id):
        return f"the enrolment token is for worker {for_id!r}"
    if for_class not in ("", worker_class):
        return f"the enrolment token is for class {for_class!r}"
    if known and not for_id:
        return f"worker {worker_id!r} was enrolled before, which needs a token for this id"
    return ""


def _create(path: Path) -> None:
    """Create the database as a private file of the state directory's owner.

    A command that root runs must not keep the gateway, which is another user, from the file.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        own_like(path.parent, descriptor)
    finally:
        os.close(descriptor)
