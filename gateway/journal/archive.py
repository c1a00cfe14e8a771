"""Checks, backups and restores of a journal, from a process of their own.

Checks and backups read a journal that a gateway has open like any second reader of the database.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Final

import apsw

from gateway.journal import schema
from gateway.journal.errors import JournalBroken, JournalDamaged, StoreFull, is_disk_full
from gateway.journal.files import DATABASE, INDEX, LOG, MARKER, StateInUse, is_empty, lock
from gateway.journal.sqlite_store import (
    InvalidMarker,
    Mark,
    check_content,
    check_files,
    read_marker,
    write_marker,
)
from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.runtime.database import connect, describe, find_faults
from synergai.runtime.files import own_like, sync_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUSY_TIMEOUT_MS: Final = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Figures of a journal's content."""

    epoch: int
    commits: int
    unfinished: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalReport:
    """State of a journal, or of a copy of one; the fault is empty if nothing is wrong."""

    path: Path
    running: bool
    fault: str = ""
    content: Content | None = None
    copy_of: Path | None = None


def check(directory: Path) -> JournalReport:
    """Read all of a journal and report its state; changes nothing."""
    path = _existing(directory)
    with _perhaps_locked(directory) as running:
        content = None
        try:
            # First, so that a running gateway is not ahead of it.
            mark = check_files(directory)
            with closing(reader(path)) as connection, _telling_full(connection, directory):
                content = _read_content(connection)
                check_content(connection, path, mark, thorough=True)
        except JournalDamaged as error:
            return JournalReport(path=path, running=running, fault=error.fault, content=content)
        except (apsw.Error, schema.WrongVersion) as error:
            return JournalReport(path=path, running=running, fault=describe(error), content=content)
    return JournalReport(path=path, running=running, content=content)


def back_up(directory: Path, target: Path) -> JournalReport:
    """Copy a journal to a new file, atomically; return the state of the copy.

    The copy has everything that can be read. It may therefore lack what the marker knows of.
    """
    path = _existing(directory)
    if target.exists():
        raise InvalidInput(f"{target} already exists; back up to a new file")
    with _perhaps_locked(directory):
        try:
            with _temporary(target) as copy:
                with closing(reader(path)) as connection:
                    content = _copy(connection, path, copy)
                copy.rename(target)
                sync_path(target.parent)
        except (apsw.Error, schema.WrongVersion) as error:
            raise JournalBroken(f"{path} cannot be backed up: {describe(error)}") from error
        except OSError as error:
            raise InvalidInput(f"cannot write {target}: {error.strerror}") from error
    return JournalReport(path=target, running=False, content=content, copy_of=path)


def restore(directory: Path, source: Path) -> JournalReport:
    """Replace a journal by a backup; the files before it move to a folder of their own.

    The gateway continues in a new epoch, so that reports on earlier assignments are rejected.
    """
    if not source.is_file():
        raise NotFound(f"there is no backup {source}")
    if source.absolute().parent == directory.absolute():
        raise InvalidInput(f"{source} is in the state directory itself; move it elsewhere first")
    descriptor = _lock_stopped(directory)
    try:
        return replace_journal(directory, source)
    finally:
        os.close(descriptor)


def replace_journal(directory: Path, source: Path) -> JournalReport:
    """Replace the journal of a directory that the caller has locked; see `restore`."""
    path = directory / DATABASE
    with ExitStack() as stack:
        try:
            copy = stack.enter_context(_temporary(path))
            with closing(reader(source)) as connection:
                content = _copy(connection, source, copy)
        except JournalDamaged as error:
            raise InvalidInput(f"{source} is damaged: {error.fault}") from error
        except (apsw.Error, schema.WrongVersion) as error:
            raise InvalidInput(f"{source} cannot be restored: {describe(error)}") from error
        except OSError as error:
            raise Unavailable(f"cannot write to {directory}: {error.strerror}") from error
        try:
            mark = Mark(max(content.epoch, _latest_epoch(directory)), content.commits)
            _set_epoch(copy, mark.epoch)
            own_like(directory, copy)
            write_marker(directory / MARKER, mark._replace(restoring=True))
            set_aside(directory)
            copy.rename(path)
            sync_path(directory)
            write_marker(directory / MARKER, mark)
            own_like(directory, directory / MARKER)
        except (OSError, apsw.Error) as error:
            raise Unavailable(f"cannot write to {directory}: {error}") from error
    return JournalReport(path=path, running=False, content=replace(content, epoch=mark.epoch))


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
def _perhaps_locked(directory: Path) -> Iterator[bool]:
    """Keep a gateway from starting; yields whether one runs already."""
    try:
        descriptor = lock(directory)
    except StateInUse:
        yield True
        return
    try:
        yield False
    finally:
        os.close(descriptor)


def _lock_stopped(directory: Path) -> int:
    try:
        return lock(directory)
    except StateInUse:
        raise Unavailable(f"a gateway uses {directory}; stop it first") from None


def reader(path: Path) -> apsw.Connection:
    """Open the database of a journal, to read it."""
    connection = connect(path)
    connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
    return connection


def _read_content(connection: apsw.Connection) -> Content:
    if not schema.read_version(connection):
        raise schema.WrongVersion("it has no tables")
    counters = schema.read_counters(connection)
    [(unfinished, ended)] = connection.execute(
        "SELECT count(*) FILTER (WHERE state <= 2), count(*) FILTER (WHERE state > 2) FROM jobs"
    )
    return Content(
        epoch=counters.epoch,
        commits=counters.commits,
        unfinished=unfinished,
        ended=ended,
    )


def _copy(connection: apsw.Connection, path: Path, copy: Path) -> Content:
    """Copy a database in one step, as of one commit; return the figures of the copy."""
    with closing(connect(copy, create=True)) as target:
        with _telling_full(connection, path.parent):
            schema.read_version(connection)
        with (
            _telling_full(target, copy.parent),
            target.backup("main", connection, "main") as backup,
        ):
            backup.step()
        target.pragma("journal_mode", "delete")  # one file, without a log
        content = _read_content(target)
        if faults := find_faults(target, thorough=True):
            raise JournalDamaged(path, "; ".join(faults))
    sync_path(copy)
    return content


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """Yield a new private file in the folder of `target`; removes it unless it was renamed."""
    descriptor, name = mkstemp(prefix=f".{target.name}-", dir=target.parent)
    os.close(descriptor)
    path = Path(name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


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
    try:
        mark = read_marker(directory / MARKER)
    except InvalidMarker:
        return 0
    return 0 if mark is None else mark.epoch


def _set_epoch(path: Path, epoch: int) -> None:
    with closing(connect(path)) as connection:
        connection.execute("UPDATE gateway SET epoch = ?", (epoch,))


def set_aside(directory: Path) -> None:
    """Move the files of the journal to a new folder; a later look at them may still help."""
    (directory / INDEX).unlink(missing_ok=True)
    files = [directory / name for name in (DATABASE, LOG) if not is_empty(directory / name)]
    if files:
        folder = directory / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
        folder.mkdir(mode=0o700)
        own_like(directory, folder)
        for file in files:
            file.rename(folder / file.name)
        sync_path(folder)
    for name in (DATABASE, LOG):
        (directory / name).unlink(missing_ok=True)
