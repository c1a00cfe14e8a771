"""Journal in a SQLite database of the state directory, with a marker of what it contains.

A journal that lacks what was acknowledged is not opened. The marker is written first when a journal
is created, so a journal without one is not an interrupted creation.
"""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from gateway.journal import schema
from gateway.journal.files import CLUSTER, DATABASE, LOG, MARKER, is_empty
from gateway.journal.store import JournalBroken, JournalDamaged, Operation, StoreFull, is_disk_full
from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.database import connect, describe, expect_checksums, find_damage
from synergai.runtime.files import sync_path, write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.runtime.clock import Clock

CACHED_KIB: Final = 128
"""Most memory for cached pages, in KiB. The operating system caches the file, too; a larger cache
makes no job faster, and has the gateway grow until it is full: at 100 jobs a minute, one of 512 KiB
takes 12 minutes, and SQLite's default of 2,000 the first hour."""
_SECTOR: Final = 512
_NAME: Final = "synergai-journal"
_OPEN: Final = "open"
_RESTORING: Final = "restoring"


class Mark(NamedTuple):
    """What the database contains at least, and whether a restore has begun but not ended."""

    epoch: int = 0
    commits: int = 0
    restoring: bool = False


class InvalidMarker(Exception):
    """The file is not a marker."""


def read_marker(path: Path) -> Mark | None:
    """Return the latest mark; None if there is no marker."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    head = _decode(content[:_SECTOR])
    if head is None:
        raise InvalidMarker
    progress = _decode(content[_SECTOR : 2 * _SECTOR])
    return head if progress is None or progress.epoch != head.epoch else progress


def write_marker(path: Path, mark: Mark) -> None:
    """Replace the marker, durably."""
    write_atomic(path, (_encode(mark) * 2).decode(), 0o600)
    sync_path(path.parent)


class Marker:
    """Marker next to an open journal: how many commits the database contains, at least.

    SQLite takes a missing file for an empty database, and a missing or damaged write-ahead log for
    the end of the log. The marker tells such a loss from an earlier state.

    It is never ahead of the database after any crash: a commit is counted after it is durable. The
    head is replaced atomically, and synced, when the journal is opened and closed. The progress
    behind it is overwritten in place after every commit, without a sync: that takes microseconds.
    It survives a crash of the process, and a power cut as far as the kernel has written it, which
    takes about half a minute. A torn progress is ignored; it has a sector of its own.
    """

    def __init__(self, path: Path, mark: Mark) -> None:
        self._path = path
        self._mark = mark
        write_marker(path, mark)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def advance(self, commits: int) -> None:
        """Note that the database contains `commits` commits, without a sync."""
        self._mark = self._mark._replace(commits=commits)
        # An earlier mark is true as well.
        with suppress(OSError):
            os.pwrite(self._descriptor, _encode(self._mark), _SECTOR)

    def close(self) -> None:
        """Write the latest mark durably, if possible, and close the file."""
        os.close(self._descriptor)
        with suppress(OSError):
            write_marker(self._path, self._mark)


def _encode(mark: Mark) -> bytes:
    state = _RESTORING if mark.restoring else _OPEN
    fields = f"{_NAME} {schema.VERSION} {state} {mark.epoch} {mark.commits}"
    return f"{fields} {zlib.crc32(fields.encode()):08x}".ljust(_SECTOR - 1).encode() + b"\n"


def _decode(sector: bytes) -> Mark | None:
    text = sector.decode("ascii", "replace").rstrip()
    fields, _, checksum = text.rpartition(" ")
    if checksum != f"{zlib.crc32(fields.encode()):08x}" or not fields.startswith(_NAME):
        return None
    _, version, *rest = fields.split()
    if version != str(schema.VERSION):
        raise schema.WrongVersion(f"it has version {version}")
    state, epoch, commits = rest
    return Mark(int(epoch), int(commits), state == _RESTORING)


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
                f"{path} cannot be used: {error}. Install the SynergAI that wrote it, or a "
                f"later one; start with another state directory (--state), or move {DATABASE}, "
                f"{LOG} and {MARKER} out of this one: the gateway then starts without their jobs"
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


class SqliteStore:
    """Database in a locked state directory; it is created if there is none."""

    cluster = ""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._clock = clock
        self.place = str(directory)
        with ExitStack() as stack:
            opened = open_journal(directory, clock, stack)
            self.connection, self._marker, self.epoch, self._commits = opened
            self._resources = stack.pop_all()

    def execute(self, operations: Sequence[Operation]) -> list[object]:
        outcomes: list[object] = []
        self.connection.execute("BEGIN IMMEDIATE")
        unchanged = self.connection.total_changes()
        for operation in operations:
            try:
                outcomes.append(operation(self.connection))
            except SynergaiError as error:  # raised before any change
                outcomes.append(error)
        changed = self.connection.total_changes() != unchanged
        if changed:
            counted = self._commits + 1, *self._clock.read()
            self.connection.execute(schema.COUNT_COMMIT, counted)
        self.connection.execute("COMMIT")
        if changed:
            self._commits += 1
            self._marker.advance(self._commits)
        return outcomes

    def roll_back(self) -> None:
        with suppress(apsw.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def is_full(self, error: Exception) -> bool:
        return is_disk_full(error, self.connection)

    def has_room(self) -> bool:
        """Return true: the reserve, on the same disk, is what shows a lack."""
        return True

    def close(self) -> None:
        self._resources.close()
