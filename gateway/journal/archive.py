"""Checks and copies of a journal, and its replacement, from a process of their own.

Checks and copies read a journal that a gateway has open like any second reader of the database.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

import apsw

from gateway.journal import schema
from gateway.journal.files import DATABASE, LOG, MARKER, StateInUse, lock
from gateway.journal.sqlite_store import (
    InvalidMarker,
    Mark,
    check_content,
    check_files,
    read_marker,
    write_marker,
)
from gateway.journal.store import JournalBroken, JournalDamaged, StoreFull, is_disk_full
from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.runtime.database import connect, describe, find_faults
from synergai.runtime.files import own_like, sync_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BUSY_TIMEOUT_MS: Final = 5000


def check(directory: Path) -> str:
    """Read all of a journal; return its fault, empty if it has none. It changes nothing."""
    path = _existing(directory)
    with _perhaps_locked(directory):
        try:
            # First, so that a running gateway is not ahead of it.
            mark = check_files(directory)
            with closing(reader(path)) as connection, _telling_full(connection, directory):
                _read_counters(connection)
                check_content(connection, path, mark, thorough=True)
        except schema.WrongVersion as error:
            return str(error)
        except (JournalDamaged, apsw.Error) as error:
            fault = error.fault if isinstance(error, JournalDamaged) else describe(error)
            return f"damaged: {fault}"
    return ""


def copy_database(source: Path, target: Path) -> None:
    """Copy the database of a journal to a new file, as of one commit.

    The copy has everything that can be read. It may therefore lack what the marker knows of.
    """
    try:
        with closing(reader(source)) as connection:
            _copy(connection, source, target)
    except (apsw.Error, schema.WrongVersion) as error:
        raise JournalBroken(f"{source} cannot be copied: {describe(error)}") from error


def find_fault(path: Path) -> str:
    """Return what is wrong with a copy of a journal; empty if nothing is."""
    try:
        with closing(connect(path)) as connection:
            _read_counters(connection)
            return "; ".join(find_faults(connection, thorough=True))
    except (apsw.Error, schema.WrongVersion) as error:
        return describe(error)


def replace_files(directory: Path, staged: Path, names: Iterable[str], skipped_epochs: int) -> None:
    """Move the files in `staged` to their places in a state directory that the caller has locked.

    What is in the directory by these names moves to a new folder. If there is a journal among the
    files, a gateway refuses to start after an interruption, until the replacement is repeated.

    Args:
        skipped_epochs: how many the journal may lack.
    """
    journal = staged / DATABASE
    mark = None
    try:
        if journal.exists():
            mark = _continue_epoch(directory, journal, skipped_epochs)
            write_marker(directory / MARKER, mark._replace(restoring=True))
        _set_aside(directory, names)
        for path in staged.rglob("*"):
            own_like(directory, path)
        for path in list(staged.iterdir()):
            path.rename(directory / path.name)
        sync_path(directory)
        if mark is not None:
            write_marker(directory / MARKER, mark)
            own_like(directory, directory / MARKER)
        staged.rmdir()
    except (OSError, apsw.Error) as error:
        raise Unavailable(f"cannot write to {directory}: {error}") from error


def _continue_epoch(directory: Path, journal: Path, skipped: int) -> Mark:
    """Let a journal go on behind the last epoch of its directory; return its mark."""
    with closing(connect(journal)) as connection:
        counters = _read_counters(connection)
        epoch = max(counters.epoch + skipped, _latest_epoch(directory))
        mark = Mark(epoch, counters.commits)
        connection.execute("UPDATE gateway SET epoch = ?", (mark.epoch,))
    return mark


def _existing(directory: Path) -> Path:
    """Return the database of a directory that has a journal, even if only its marker is left."""
    path = directory / DATABASE
    if directory.is_file():
        raise InvalidInput(
            f"{directory} is a file: --state names the directory of a gateway, whose journal is "
            f"{DATABASE}"
        )
    if not any((directory / name).exists() for name in (DATABASE, MARKER, LOG)):
        raise NotFound(f"there is no journal in {directory}; name its directory with --state")
    return path


@contextmanager
def _perhaps_locked(directory: Path) -> Iterator[None]:
    """Keep a gateway from starting, unless one runs already."""
    try:
        descriptor = lock(directory)
    except StateInUse:
        yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


def lock_stopped(directory: Path) -> int:
    """Lock the state directory of a gateway that does not run; return the descriptor to close."""
    try:
        return lock(directory)
    except StateInUse:
        raise Unavailable(f"a gateway uses {directory}; stop it first") from None


def reader(path: Path) -> apsw.Connection:
    """Open the database of a journal, to read it."""
    connection = connect(path)
    connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
    return connection


def _read_counters(connection: apsw.Connection) -> schema.Counters:
    if not schema.read_version(connection):
        raise schema.WrongVersion("it has no tables")
    return schema.read_counters(connection)


def _copy(connection: apsw.Connection, path: Path, copy: Path) -> None:
    """Copy a database in one step, as of one commit."""
    copy.touch(0o600)
    with closing(connect(copy, create=True)) as target:
        with _telling_full(connection, path.parent):
            schema.read_version(connection)
        with (
            _telling_full(target, copy.parent),
            target.backup("main", connection, "main") as backup,
        ):
            backup.step()
        target.pragma("journal_mode", "delete")  # one file, without a log
        _read_counters(target)
        if faults := find_faults(target, thorough=True):
            raise JournalDamaged(path, "; ".join(faults))
    sync_path(copy)


@contextmanager
def _telling_full(connection: apsw.Connection, directory: Path) -> Iterator[None]:
    """Tell a full disk from damage; SQLite makes files even to read."""
    try:
        yield
    except apsw.Error as error:
        if is_disk_full(error, connection):
            raise StoreFull(directory) from error
        raise


def _latest_epoch(directory: Path) -> int:
    """Return the last epoch of a directory by its marker; 0 if it has none that can be read."""
    try:
        mark = read_marker(directory / MARKER)
    except (InvalidMarker, schema.WrongVersion):
        return 0
    return 0 if mark is None else mark.epoch


def _set_aside(directory: Path, names: Iterable[str]) -> None:
    """Move the files whose names begin so to a new folder; a later look at them may still help."""
    files = {path for name in names for path in directory.glob(f"{name}*")}
    if files:
        now = datetime.now(UTC)
        folder = Path(mkdtemp(prefix=f"replaced-{now:%Y%m%dT%H%M%S}-", dir=directory))
        own_like(directory, folder)
        for file in files:
            file.rename(folder / file.name)
        sync_path(folder)
