"""Configuration dictionary in a SQLite database with one row per entry.

Several processes use the database at once.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import apsw

from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.profiles.dictionary import (
    COLUMNS,
    DISTURBED,
    KEY,
    KINDS,
    MEASURED,
    OBSERVED,
    PREDICTED,
    ConfigurationDictionary,
    check_size,
    from_record,
    read_rows,
    to_record,
)
from synergai.runtime import database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from synergai.profiles.dictionary import ProfileEntry

APPLICATION_ID: Final = 0x53594E44  # "SYND"; identifies our databases
SCHEMA_VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 30_000
"""A lock is held for milliseconds, but by a process that a busy machine may not run for seconds;
what would be lost is minutes of measurement."""

_SCHEMA: Final = f"""
CREATE TABLE profile (
    {", ".join(f"{name} {KINDS[name]} NOT NULL" for name in COLUMNS)},
    PRIMARY KEY ({", ".join(KEY)})
) STRICT, WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_HEADER_BYTES: Final = 100
_PUT_IF: Final = (
    f"INSERT INTO profile ({', '.join(COLUMNS)}) VALUES (:{', :'.join(COLUMNS)}) "  # noqa: S608  # our own column names
    f"ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in KEY)
    + " WHERE "
)
# A prediction replaces only another prediction.
_PUT: Final = _PUT_IF + f"NOT (excluded.label = '{PREDICTED}' AND profile.label <> '{PREDICTED}')"
_PUT_IF_NO_WORSE: Final = (
    _PUT + f" AND NOT (excluded.label = '{DISTURBED}' AND profile.label = '{MEASURED}')"
)
_PUT_OBSERVED: Final = _PUT_IF + f"profile.label IN ('{OBSERVED}', '{PREDICTED}')"
_IS_KEY: Final = " AND ".join(f"{name} = :{name}" for name in KEY)
_GET: Final = f"SELECT * FROM profile WHERE {_IS_KEY}"  # noqa: S608  # our own column names
_DELETE: Final = f"DELETE FROM profile WHERE {_IS_KEY}"  # noqa: S608  # our own column names


class DictionaryDamaged(InvalidInput):
    """The database of a dictionary is damaged."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(
            f"the dictionary {path} is damaged: {fault}. Move it away, and import a copy or "
            "profile again"
        )
        self.fault = fault


class DictionaryStore:
    """Database of a configuration dictionary; a context manager that closes it.

    Args:
        path: the database; created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # SQLite treats a file shorter than its header as an empty database.
        if path.is_file() and 0 < path.stat().st_size < _HEADER_BYTES:
            raise InvalidInput(f"{path} is not a configuration dictionary: it is too short")
        with self._translated():
            self._connection = database.connect(path, create=True)
        try:
            with self._translated():
                self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
                self._create()
                self.check()
                self._data_version = self._connection.pragma("data_version")
        except SynergaiError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; idempotent."""
        self._connection.close()

    def check(self, *, thorough: bool = False) -> None:
        """Read the whole file and check it."""
        with self._translated():
            if fault := database.find_damage(self._connection, thorough=thorough):
                raise self._damaged(fault)

    def copy(self, path: Path) -> None:
        """Copy the database to a new file."""
        path.touch(0o600)
        with (
            self._translated(),
            closing(database.connect(path, create=True)) as target,
            target.backup("main", self._connection, "main") as copy,
        ):
            copy.step()

    def changed_by_others(self) -> bool:
        """Return whether another process has changed the database since it was last read."""
        with self._translated():
            return bool(self._connection.pragma("data_version") != self._data_version)

    def load(self) -> ConfigurationDictionary:
        """Read all entries."""
        self.check()
        with self._translated():
            # Before the rows: a change in between is reported again rather than lost.
            version = self._connection.pragma("data_version")
            records = list(read_rows(self._connection.execute("SELECT * FROM profile")))
        try:
            dictionary = ConfigurationDictionary(map(from_record, records))
        except InvalidInput as error:
            raise InvalidInput(f"{self._path}: {error}") from error
        self._data_version = version
        return dictionary

    def put_all(
        self,
        entries: Iterable[ProfileEntry],
        *,
        keep_undisturbed: bool = False,
        max_entries: int | None = None,
    ) -> list[ProfileEntry]:
        """Add or replace `entries` in one transaction.

        Args:
            keep_undisturbed: whether measured entries stay rather than be replaced by disturbed
                ones. Predicted ones never replace others.
            max_entries: most entries that the file may grow to; None for any number.

        Returns:
            The entries that stay.
        """
        with self._writing():
            before = self._count()
            kept = []
            for entry in entries:
                record = to_record(entry)
                put = _PUT_IF_NO_WORSE if keep_undisturbed else _PUT
                self._connection.execute(put, record)
                if not self._connection.changes():
                    kept.append(self._get(record))
            check_size(before, self._count(), max_entries, self._path)
            return kept

    def delete(self, selects: Callable[[ProfileEntry], bool]) -> list[ProfileEntry]:
        """Delete the entries that `selects` returns True for, in one transaction; return them."""
        with self._writing():
            selected = [entry for entry in self.load() if selects(entry)]
            self._connection.executemany(
                _DELETE, [{n: to_record(entry)[n] for n in KEY} for entry in selected]
            )
        return selected

    def put_observed(self, entry: ProfileEntry) -> None:
        """Add an entry observed in service, unless there is a measured one."""
        with self._writing():
            self._connection.execute(_PUT_OBSERVED, to_record(entry))

    def _count(self) -> int:
        [(count,)] = self._connection.execute("SELECT count(*) FROM profile")
        return int(count)

    def _get(self, record: Mapping[str, Any]) -> ProfileEntry:
        """Return the entry of the same engine, worker class and configuration."""
        found = self._connection.execute(_GET, {name: record[name] for name in KEY})
        return from_record(next(read_rows(found)))

    def _create(self) -> None:
        with database.transaction(self._connection, writes=False):
            version = self._read_version()
        if version == 0:
            database.expect_checksums(self._connection)
            with database.transaction(self._connection, writes=True):
                if self._read_version() == 0:  # another process may have been first
                    self._connection.execute(_SCHEMA)

    def _read_version(self) -> int:
        """Return the version of the file; 0 if it is empty."""
        application_id = self._connection.pragma("application_id")
        version = int(self._connection.pragma("user_version"))
        empty = not self._connection.execute("SELECT count(*) FROM sqlite_schema").get
        if empty and application_id == 0:
            return 0
        if application_id != APPLICATION_ID:
            raise InvalidInput(f"{self._path} is a database, but not a configuration dictionary")
        if version != SCHEMA_VERSION:
            raise InvalidInput(
                f"{self._path} is a configuration dictionary of version {version}, but this "
                f"program reads version {SCHEMA_VERSION}; export it to CSV with the program that "
                "wrote it, and import the CSV file"
            )
        return version

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._translated(), database.transaction(self._connection, writes=True):
            yield

    def _damaged(self, fault: str) -> DictionaryDamaged:
        return DictionaryDamaged(self._path, fault)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise self._translate(error) from error
        except UnicodeDecodeError as error:
            raise self._damaged("a text in it is not UTF-8") from error

    def _translate(self, error: apsw.Error) -> SynergaiError:
        if isinstance(error, (apsw.BusyError, apsw.LockedError)):
            return Unavailable(f"{self._path} is locked by another process; try again later")
        if isinstance(error, apsw.FullError):
            return Unavailable(
                f"the disk of {self._path} is full, and nothing was changed; free space there, "
                "then retry"
            )
        if isinstance(error, apsw.NotADBError):
            return InvalidInput(
                f"{self._path} is not a SQLite database, or its beginning is damaged; convert a "
                ".csv file by 'synergai dictionary import'"
            )
        if database.is_damage(error):
            return self._damaged(database.describe(error))
        return InvalidInput(f"{self._path} cannot be used as a configuration dictionary: {error}")
