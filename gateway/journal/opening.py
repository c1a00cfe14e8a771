"""Opening of the journal: refuses one that lacks what was acknowledged.

The marker is written first when a journal is created, so a journal without a
marker is not an interrupted creation.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from gateway.journal import schema
from gateway.journal.errors import JournalBroken, JournalDamaged, StoreFull, is_disk_full
from gateway.journal.files import CLUSTER, DATABASE, LOG, MARKER, is_empty
from gateway.journal.marker import InvalidMarker, Mark, Marker, read_marker, write_marker
from synergai.errors import Unavailable
from synergai.runtime.database import connect, describe, expect_checksums, find_damage

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.runtime.clock import Clock

CACHED_KIB: Final = 128
"""Most memory for cached pages, in KiB. The operating system caches the file, too; a larger cache
makes no job faster, and has the gateway grow until it is full: at 100 jobs a minute, one of 512 KiB
takes 12 minutes, and SQLite's default of 2,000 the first hour."""


class OpenedJournal(NamedTuple):
    """A checked journal of the current version."""

    connection: apsw.Connection
    marker: Marker
    epoch: int
    commits: int


def open_journal(directory: Path, clock: Clock, stack: ExitStack) -> OpenedJournal:
    """Open the journal in a locked state directory; create it if there is none."""
    path = directory / DATABASE
    connection = None
    with ExitStack() as opened:
        try:
            mark = check_files(directory)
            new = is_empty(path)
            if new and mark is None:
                write_marker(directory / MARKER, Mark())
            connection = opened.enter_context(closing(connect(path, create=new)))
            if new:
                expect_checksums(connection)
            check_content(connection, path, mark)
            connection.pragma("cache_size", -CACHED_KIB)
            connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            connection.pragma("foreign_keys", True)
            schema.create(connection)
            counters = schema.next_epoch(connection, clock.read())
            marker = Marker(directory / MARKER, Mark(*counters))
        except schema.WrongVersion as error:
            raise JournalBroken(
                f"{path} cannot be used: {error}. Start with another state directory (--state), or "
                f"move {DATABASE}, {LOG} and {MARKER} out of this one: the gateway then starts "
                "without their jobs"
            ) from error
        except apsw.Error as error:
            if is_disk_full(error, connection):
                raise StoreFull(directory) from error
            raise JournalBroken(f"{path} cannot be used: {describe(error)}") from error
        except OSError as error:
            if is_disk_full(error):
                raise StoreFull(directory) from error
            raise Unavailable(f"cannot write to {directory}: {error.strerror}") from error
        opened.callback(marker.close)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        stack.enter_context(opened.pop_all())
    return OpenedJournal(connection, marker, *counters)


def check_files(directory: Path) -> Mark | None:
    """Check the files before SQLite opens them; return the mark, None if there is none."""
    path = directory / DATABASE
    if (directory / CLUSTER).exists():
        raise JournalBroken(
            f"the journal of {directory} is in PostgreSQL: name its database with --journal, or "
            "choose another directory (--state)"
        )
    try:
        mark = read_marker(directory / MARKER)
    except InvalidMarker:
        raise JournalDamaged(path, f"{directory / MARKER} is not a marker") from None
    if mark is not None and mark.restoring:
        raise JournalDamaged(path, "a restore was interrupted; run it again")
    if is_empty(path):
        if mark is not None and mark.commits:
            raise JournalDamaged(path, "the file is missing or empty, but jobs were recorded in it")
        if not is_empty(directory / LOG):
            raise JournalDamaged(path, f"the file is missing or empty, but {LOG} is not")
    return mark


def check_content(
    connection: apsw.Connection, path: Path, mark: Mark | None, *, thorough: bool = False
) -> None:
    """Check the content of a database against its checksums and the mark, if there is one."""
    try:
        version = schema.read_version(connection)
        commits = schema.read_counters(connection).commits if version else 0
    except (apsw.CorruptError, apsw.IOError, apsw.NotADBError) as error:
        if is_disk_full(error, connection):
            raise  # SQLite makes files even to read
        if mark is None and isinstance(error, apsw.NotADBError):
            raise  # perhaps it never was one
        raise JournalDamaged(path, describe(error)) from error
    if mark is None and version:
        raise JournalDamaged(path, f"its {MARKER} is missing")
    if mark is not None and commits < mark.commits:
        raise JournalDamaged(
            path,
            f"the last {mark.commits - commits:,} of {mark.commits:,} commits are lost; {LOG} is "
            "missing or damaged, or another journal took its place",
        )
    if version and (fault := find_damage(connection, thorough=thorough)):
        raise JournalDamaged(path, fault)
