"""Marker next to the database: how many commits the database contains, at least.

SQLite takes a missing file for an empty database, and a missing or damaged write-ahead log for the
end of the log. The marker tells such a loss from an earlier state.

It is never ahead of the database after any crash: a commit is counted after it is durable. The
head is replaced atomically, and synced, when the journal is opened and closed. The progress behind
it is overwritten in place after every commit, without a sync, which costs microseconds. It
survives a crash of the process, and a power cut as far as the kernel has written it, which takes
about half a minute. A torn progress is ignored; it has a sector of its own.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.runtime.files import sync_path, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

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
    """Marker of an open journal."""

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
    fields = f"{_NAME} {state} {mark.epoch} {mark.commits}"
    return f"{fields} {zlib.crc32(fields.encode()):08x}".ljust(_SECTOR - 1).encode() + b"\n"


def _decode(sector: bytes) -> Mark | None:
    text = sector.decode("ascii", "replace").rstrip()
    fields, _, checksum = text.rpartition(" ")
    if checksum != f"{zlib.crc32(fields.encode()):08x}" or not fields.startswith(_NAME):
        return None
    _, state, epoch, commits = fields.split()
    return Mark(int(epoch), int(commits), state == _RESTORING)
