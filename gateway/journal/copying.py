"""Copies of a journal from a state directory to PostgreSQL, and back.

A copy has all jobs with their keys and executions, in the same order, and the engines. It is made
in steps of some hundred jobs: one that was interrupted continues where it ended. Nothing uses the
target before the copy is complete and equal to the source. Policies, enrolments and profiles are
in the state directory at first, from where the first leader takes them, and are put back there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import apsw

from gateway.journal import archive, schema
from gateway.journal.errors import JournalBroken
from gateway.journal.files import CLUSTER, DATABASE, MARKER, lock
from gateway.journal.postgresql.leadership import LOCK
from gateway.journal.postgresql.schema import CREATE_SCHEMA, CREATE_TABLES, SCHEMA, VERSION
from gateway.journal.postgresql.session import open_session, where
from gateway.journal.postgresql.store import storable, translated
from gateway.journal.shared_state import StateDocuments
from gateway.journal.store import Row
from synergai.errors import InvalidInput
from synergai.runtime.clock import Clock
from synergai.runtime.database import connect, describe, expect_checksums
from synergai.runtime.files import write_atomic
from synergai.runtime.paths import dictionary_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_STEP: Final = 500
"""Jobs of one transaction."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_PARTIAL: Final = "copying"
"""Folder of the state directory with a copy that is not complete."""
_JOBS: Final = (
    "sequence, id, engine, queries, qos_s, priority, tenant, submitted_at, dispatched_at, "
    "estimated_s, estimated_low_s, estimated_high_s, state, finished_at, reason, stages, "
    "upload, max_failures, variant, min_accuracy"
)
_EXECUTIONS: Final = (
    "assignment, job, first, stop, worker, threads, power_mode, execution_provider, seconds, "
    "labelled, correct, failures, variant"
)
_KEYS: Final = "tenant, key, submission, job"
_ENGINES: Final = "name, unloaded, description"
# With our own names of columns only.
_NEXT_JOBS: Final = f"SELECT {_JOBS} FROM jobs WHERE sequence > ? ORDER BY sequence LIMIT ?"  # noqa: S608
_THEIR_KEYS: Final = f"SELECT {_KEYS} FROM keys WHERE job BETWEEN ? AND ?"  # noqa: S608
_THEIR_EXECUTIONS: Final = (
    f"SELECT {_EXECUTIONS} FROM executions WHERE job BETWEEN ? AND ? ORDER BY assignment"  # noqa: S608
)
_ALL_ENGINES: Final = f"SELECT {_ENGINES} FROM engines"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Part:
    """Some jobs with their keys and executions; each list is in order of its rows."""

    jobs: list[Row]
    keys: list[Row]
    executions: list[Row]


class _Target(Protocol):
    """Where a copy is made."""

    def read(self, statement: str, *parameters: int) -> list[Row]:
        """Return the rows of a query with a question mark for each parameter."""

    def begin(self) -> None:
        """Prepare for the first part, or for the next one of a copy that was interrupted."""

    def write(self, part: Part) -> None:
        """Record jobs, in one transaction."""

    def complete(self, epoch: int, engines: list[Row], forgotten: list[Row]) -> None:
        """Record the engines, and let gateways use the copy, from the next epoch on."""


_Read: TypeAlias = Callable[..., list[Row]]


def copy_journal(url: str, directory: Path, *, back: bool, insecure: bool = False) -> int:
    """Copy the journal of a state directory to a database, or back; return the number of jobs.

    The directory belongs to the database then, or to a journal of its own again. A journal that it
    had moves to a folder of its own.

    Raises:
        InvalidInput: a gateway uses one of them, or the target has a journal already.
    """
    with ExitStack() as stack:
        try:
            stack.callback(os.close, lock(directory))
            database = stack.enter_context(closing(_Database(url, directory, insecure=insecure)))
            database.lock()
            if back:
                database.check_complete()
                file = stack.enter_context(closing(_NewFile(directory)))
                documents = StateDocuments(directory, dictionary_path(directory))
                stack.enter_context(closing(documents)).write(database.documents())
                return _copy(database.read, file)
            report = archive.check(directory)
            if report.fault:
                raise InvalidInput(f"{report.path} cannot be copied: {report.fault}")
            connection = stack.enter_context(closing(archive.reader(report.path)))
            return _copy(partial(_rows, connection), database)
        except apsw.Error as error:
            raise JournalBroken(f"the journal cannot be copied: {describe(error)}") from error


def _copy(read: _Read, target: _Target) -> int:
    target.begin()
    [(last,)] = target.read("SELECT coalesce(max(sequence), 0) FROM jobs")
    for part in _parts(read, last):
        target.write(part)
    copied = 0
    for expected, found in zip(_parts(read), _parts(target.read), strict=False):
        if expected != found:
            raise JournalBroken(
                f"the copy differs from job {expected.jobs[0][1]} on, and is not used: remove it, "
                "and copy again"
            )
        copied += len(found.jobs)
    [(jobs,)] = read("SELECT count(*) FROM jobs")
    if copied != jobs:
        raise JournalBroken(f"the copy has {copied:,} jobs, not {jobs:,}, and is not used")
    [(epoch,)] = read("SELECT epoch FROM gateway")
    target.complete(epoch, read(_ALL_ENGINES), read("SELECT name FROM forgotten_engines"))
    return copied


def _parts(read: _Read, last: int = 0) -> Iterator[Part]:
    """Yield the jobs behind a sequence number, in order."""
    while jobs := read(_NEXT_JOBS, last, _STEP):
        first, last = jobs[0][0], jobs[-1][0]
        keys, executions = read(_THEIR_KEYS, first, last), read(_THEIR_EXECUTIONS, first, last)
        yield Part(_plain(jobs), sorted(_plain(keys)), _plain(executions))


def _plain(rows: Sequence[Row]) -> list[Row]:
    """Return rows as both kinds of database can have them."""
    return [tuple(storable(value) for value in row) for row in rows]


def _insert(table: str, columns: str, option: str = "") -> str:
    count = columns.count(",") + 1
    values = ", ".join(["?"] * count)
    return f"INSERT INTO {table} ({columns}) {option} VALUES ({values})"  # noqa: S608 - our names


def _rows(connection: apsw.Connection, statement: str, *parameters: int) -> list[Row]:
    return connection.execute(statement, parameters).fetchall()


class _NewFile:
    """Journal of a state directory, in a folder of it until it is complete."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        if (directory / DATABASE).exists() and not (directory / CLUSTER).exists():
            raise InvalidInput(f"{directory} has a journal already: copy to another directory")
        self._path = directory / _PARTIAL / DATABASE
        self._path.parent.mkdir(exist_ok=True, mode=0o700)
        new = not self._path.exists()
        self._connection = connect(self._path, create=new)
        if new:
            expect_checksums(self._connection)
        self.read = partial(_rows, self._connection)

    def begin(self) -> None:
        """Create the tables, without the rules that only hold while jobs run."""
        schema.create(self._connection)
        schema.drop_triggers(self._connection)

    def write(self, part: Part) -> None:
        """Record jobs."""
        with self._connection:
            self._connection.executemany(_insert("jobs", _JOBS), part.jobs)
            self._connection.executemany(_insert("keys", _KEYS), part.keys)
            self._connection.executemany(_insert("executions", _EXECUTIONS), part.executions)

    def complete(self, epoch: int, engines: list[Row], forgotten: list[Row]) -> None:
        """Move the file to its place."""
        with self._connection:
            self._connection.execute("DELETE FROM engines")
            self._connection.execute("DELETE FROM forgotten_engines")
            self._connection.executemany(_insert("engines", _ENGINES), engines)
            self._connection.executemany(_insert("forgotten_engines", "name"), forgotten)
            self._connection.execute("UPDATE gateway SET epoch = ?", (epoch,))
            schema.count_commit(self._connection, 1, Clock().read())
        schema.create_triggers(self._connection)
        self.close()
        archive.replace_files(self._directory, self._path.parent, (DATABASE, CLUSTER))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


class _Database:
    """Journal in PostgreSQL, which no gateway can lead while it is open."""

    def __init__(self, url: str, directory: Path, *, insecure: bool) -> None:
        self._directory = directory
        self._place = where(url)
        self._session = open_session(url, insecure=insecure)

    def lock(self) -> None:
        """Keep gateways from leading the database until the session ends."""
        self._session.script("SET lock_timeout = '2s'")  # a session may just be ending
        try:
            self._session.value("SELECT pg_advisory_lock($1)", LOCK)
        except Exception as error:
            if getattr(error, "sqlstate", "") != _LOCK_NOT_AVAILABLE:
                raise self._session.failure(error) from error
            text = f"a gateway leads {self._place}; stop all its gateways first"
            raise InvalidInput(text) from None

    def check_complete(self) -> None:
        """Check that there is a journal that gateways can use."""
        if self._version() != VERSION:
            raise InvalidInput(f"{self._place} has no journal of version {VERSION}")

    def read(self, statement: str, *parameters: int) -> list[Row]:
        """Return the rows of a query."""
        return self._session.fetch(translated(statement), parameters)

    def documents(self) -> dict[str, str]:
        """Return the documents."""
        return dict(self.read("SELECT name, content FROM documents"))

    def begin(self) -> None:
        """Create the tables, with a version that gateways refuse."""
        version = self._version()
        if version:
            raise InvalidInput(
                f"{self._place} has a journal already: name another database, or remove it with "
                f"DROP SCHEMA {SCHEMA} CASCADE"
            )
        if version is None:
            if not self._session.value("SELECT to_regnamespace($1)", SCHEMA):
                self._session.script(CREATE_SCHEMA)
            self._session.script("BEGIN")
            self._session.script(CREATE_TABLES)
            self._session.script("UPDATE gateway SET version = 0")
            self._session.script("ALTER TABLE executions DISABLE TRIGGER further_queries_only")
            self._session.script("COMMIT")

    def write(self, part: Part) -> None:
        """Record jobs."""
        self._session.script("BEGIN")
        self._insert("jobs", _JOBS, part.jobs, "OVERRIDING SYSTEM VALUE")
        self._session.fetch_each(
            "UPDATE jobs SET key = $2, submission = $3 WHERE sequence = $4 AND tenant = $1",
            part.keys,
        )
        self._insert("executions", _EXECUTIONS, part.executions)
        self._session.script("COMMIT")

    def complete(self, epoch: int, engines: list[Row], forgotten: list[Row]) -> None:
        """Let gateways use the database, and give it the state directory."""
        session = self._session
        session.script("BEGIN; DELETE FROM engines; DELETE FROM forgotten_engines")
        self._insert("engines", _ENGINES, _plain(engines))
        self._insert("forgotten_engines", "name", _plain(forgotten))
        session.script(
            "ALTER TABLE executions ENABLE TRIGGER further_queries_only; "
            "SELECT setval(pg_get_serial_sequence('jobs', 'sequence'), max(sequence)) FROM jobs "
            "HAVING count(*) > 0"
        )
        [(cluster,)] = session.fetch(
            "UPDATE gateway SET version = $1, epoch = $2, unix = $3, at = clock_timestamp() "
            "RETURNING cluster::text",
            (VERSION, epoch, Clock().unix_now()),
        )
        session.script("COMMIT")
        write_atomic(self._directory / CLUSTER, f"{cluster} {epoch}\n", 0o600)
        archive.set_aside(self._directory)
        (self._directory / MARKER).unlink(missing_ok=True)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _version(self) -> int | None:
        if self._session.value("SELECT to_regclass($1)", f"{SCHEMA}.gateway") is None:
            return None
        return int(self._session.value("SELECT version FROM gateway"))

    def _insert(self, table: str, columns: str, rows: list[Row], option: str = "") -> None:
        self._session.fetch_each(translated(_insert(table, columns, option)), rows)
