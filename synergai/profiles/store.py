"""Configuration dictionary in a SQLite database with one row per entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import apsw

from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.profiles.dictionary import DISTURBED, MEASURED, OBSERVED, ConfigurationDictionary
from synergai.profiles.plausibility import check_size
from synergai.profiles.records import COLUMNS, from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from synergai.profiles.dictionary import ProfileEntry

APPLICATION_ID: Final = 0x53594E44  # "SYND"; identifies our databases
SCHEMA_VERSION: Final = 2
BUSY_TIMEOUT_MS: Final = 5000

_SCHEMA: Final = f"""
CREATE TABLE profile (
    engine TEXT NOT NULL,
    worker_class TEXT NOT NULL,
    threads INTEGER NOT NULL,
    power_mode TEXT NOT NULL,
    execution_provider TEXT NOT NULL,
    qps REAL NOT NULL,
    backend_start_s REAL NOT NULL,
    model_load_s REAL NOT NULL,
    data_preparation_s REAL NOT NULL,
    latency_p50_s REAL NOT NULL,
    latency_p90_s REAL NOT NULL,
    latency_p99_s REAL NOT NULL,
    watts REAL NOT NULL,
    queries INTEGER NOT NULL,
    label TEXT NOT NULL,
    measured_at TEXT NOT NULL,
    batch_qps TEXT NOT NULL,
    PRIMARY KEY (engine, worker_class, threads, power_mode, execution_provider)
) STRICT, WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_FROM_1: Final = """
ALTER TABLE profile ADD COLUMN batch_qps TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 2;
"""
"""Migration from version 1, which had no batches."""
_HEADER_BYTES: Final = 100
_KEY: Final = ("engine", "worker_class", "threads", "power_mode", "execution_provider")
_PUT: Final = f"INSERT OR REPLACE INTO profile VALUES (:{', :'.join(COLUMNS)})"  # noqa: S608  # our own column names
_PUT_IF: Final = (
    f"INSERT INTO profile VALUES (:{', :'.join(COLUMNS)}) "  # noqa: S608  # our own column names
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _KEY)
    + " WHERE "
)
_PUT_OBSERVED: Final = _PUT_IF + f"profile.label = '{OBSERVED}'"
_PUT_IF_NO_WORSE: Final = (
    _PUT_IF + f"NOT (excluded.label = '{DISTURBED}' AND profile.label = '{MEASURED}')"
)
"""See `ProfileEntry.may_replace`."""
_GET: Final = f"SELECT * FROM profile WHERE {' AND '.join(f'{name} = :{name}' for name in _KEY)}"  # noqa: S608  # our own column names


_DELETE: Final = f"DELETE FROM profile WHERE {' AND '.join(f'{name} = :{name}' for name in _KEY)}"  # noqa: S608  # our own column names


class DictionaryStore:
    """Database of a configuration dictionary; a context manager that closes it.

    Args:
        path: the database; created if it does not exist.

    Raises:
        InvalidInput: on construction, if the file cannot be opened, is not a dictionary, or has an
            unsupported version.
        Unavailable: on construction, if another process keeps the file locked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # SQLite treats a file shorter than its header as an empty database.
        if path.is_file() and 0 < path.stat().st_size < _HEADER_BYTES:
            raise InvalidInput(f"{path} is not a configuration dictionary: it is too short")
        try:
            self._connection = apsw.Connection(str(path))
        except apsw.Error as error:
            raise self._translate(error) from error
        try:
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            with self._connection:
                self._check_or_create()
            self._data_version = self._connection.pragma("data_version")
        except apsw.Error as error:
            self.close()
            raise self._translate(error) from error
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

    def load(self) -> ConfigurationDictionary:
        """Read all entries.

        Raises:
            InvalidInput: the file is damaged or has an invalid entry.
            Unavailable: another process keeps it locked.
        """
        try:
            # Before the rows: a change in between is reported again rather than lost.
            version = self._connection.pragma("data_version")
            fault = self._connection.execute("PRAGMA quick_check(1)").get
            rows = list(self._connection.execute("SELECT * FROM profile"))
        except apsw.Error as error:
            raise self._translate(error) from error
        if fault != "ok":
            # SQLite reads what is missing of a truncated page as zeros.
            last = str(fault).splitlines()[-1]
            raise InvalidInput(f"{self._path} is damaged: {last}; restore or remove it")
        try:
            dictionary = ConfigurationDictionary(
                from_record(dict(zip(COLUMNS, row, strict=True))) for row in rows
            )
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
            entries: what to add.
            keep_undisturbed: whether measured entries stay rather than be replaced by disturbed
                ones.
            max_entries: most entries that the file may grow to; None for any number.

        Returns:
            The measured entries that stay.

        Raises:
            InvalidInput: the file cannot be written, or would have too many entries.
            Unavailable: another process keeps it locked.
        """
        try:
            with self._connection:
                before = self._count()
                records = [to_record(entry) for entry in entries]
                self._connection.executemany(
                    _PUT_IF_NO_WORSE if keep_undisturbed else _PUT, records
                )
                check_size(before, self._count(), max_entries, self._path)
                disturbed = [record for record in records if record["label"] == DISTURBED]
                kept = [
                    entry
                    for entry in map(self._get, disturbed if keep_undisturbed else ())
                    if entry.label == MEASURED
                ]
        except apsw.Error as error:
            raise self._translate(error) from error
        return kept

    def delete(self, selects: Callable[[ProfileEntry], bool]) -> list[ProfileEntry]:
        """Delete the entries that `selects` returns True for, in one transaction; return them.

        Raises:
            InvalidInput: the file is damaged, has an invalid entry or cannot be written.
            Unavailable: another process keeps it locked.
        """
        try:
            with self._connection:
                # Waits for other writers first, so that no entry is deleted that was not seen.
                self._connection.execute("DELETE FROM profile WHERE 0")
                selected = [entry for entry in self.load() if selects(entry)]
                self._connection.executemany(
                    _DELETE, [{n: to_record(entry)[n] for n in _KEY} for entry in selected]
                )
        except apsw.Error as error:
            raise self._translate(error) from error
        return selected

    def put_observed(self, entry: ProfileEntry) -> None:
        """Add an entry observed in service, unless there is one of another origin.

        Raises:
            InvalidInput: the file cannot be written.
            Unavailable: another process keeps it locked.
        """
        try:
            with self._connection:
                self._connection.execute(_PUT_OBSERVED, to_record(entry))
        except apsw.Error as error:
            raise self._translate(error) from error

    def changed_by_others(self) -> bool:
        """Return whether another process has changed the file since it was last read.

        Raises:
            InvalidInput: the file cannot be read.
            Unavailable: another process keeps it locked.
        """
        try:
            version = self._connection.pragma("data_version")
        except apsw.Error as error:
            raise self._translate(error) from error
        return bool(version != self._data_version)

    def _count(self) -> int:
        [(count,)] = self._connection.execute("SELECT count(*) FROM profile")
        return int(count)

    def _get(self, record: Mapping[str, Any]) -> ProfileEntry:
        """Return the entry of the same engine, worker class and configuration."""
        [row] = self._connection.execute(_GET, {name: record[name] for name in _KEY})
        return from_record(dict(zip(COLUMNS, row, strict=True)))

    def _check_or_create(self) -> None:
        application_id = self._connection.pragma("application_id")
        version = self._connection.pragma("user_version")
        empty = not self._connection.execute("SELECT count(*) FROM sqlite_schema").get
        if empty and application_id == 0:
            self._connection.execute(_SCHEMA)
        elif application_id != APPLICATION_ID:
            raise InvalidInput(f"{self._path} is a database, but not a configuration dictionary")
        elif version == 1:
            self._connection.execute(_FROM_1)
        elif version != SCHEMA_VERSION:
            raise InvalidInput(
                f"{self._path} is a configuration dictionary of version {version}, but this "
                f"program reads version {SCHEMA_VERSION}; export it to CSV with the program that "
                "wrote it, and import the CSV file"
            )

    def _translate(self, error: apsw.Error) -> SynergaiError:
        if isinstance(error, (apsw.BusyError, apsw.LockedError)):
            return Unavailable(f"{self._path} is locked by another process; try again later")
        if isinstance(error, apsw.NotADBError):
            return InvalidInput(
                f"{self._path} is not a SQLite database; convert a .csv or .json file by "
                "'synergai dictionary import'"
            )
        return InvalidInput(f"{self._path} cannot be used as a configuration dictionary: {error}")
