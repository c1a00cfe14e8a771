"""The journal's files in the state directory, its lock, and the space that it holds back."""

from __future__ import annotations

import errno
import os
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from synergai.errors import Unavailable
from synergai.runtime.files import lock_directory

if TYPE_CHECKING:
    from pathlib import Path

DATABASE: Final = "journal.db"
LOG: Final = "journal.db-wal"
INDEX: Final = "journal.db-shm"
"""Index of the log, which SQLite rebuilds."""
MARKER: Final = "journal.marker"
RESERVE: Final = "journal.reserve"
LOCK: Final = "lock"
CLUSTER: Final = "journal.cluster"
"""The cluster whose journal is in PostgreSQL, and the last epoch in which this gateway led it."""

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""About the size of the write-ahead log, which does not grow further once it has been reused."""


class StateInUse(Unavailable):
    """A gateway uses the state directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"another gateway uses the state directory {directory}; choose another one (--state)"
        )


def lock(directory: Path) -> int:
    """Create the state directory if it is missing, and lock it; return the descriptor to close."""
    descriptor = lock_directory(directory, LOCK)
    if descriptor is None:
        raise StateInUse(directory)
    return descriptor


def is_empty(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


class Space(Enum):
    """Room for the journal on its disk."""

    AMPLE = auto()
    """The reserve is held: jobs are accepted."""
    RESERVE = auto()
    """The reserve has been given up: accepted jobs are recorded in its room, new ones refused."""
    FULL = auto()
    """Nothing can be written."""


class Reserve:
    """File that occupies disk space; one of an earlier process is taken over.

    Once the disk is full, the journal gives it up. The progress of jobs that run can then still be
    recorded, while new jobs are refused.
    """

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def take(self) -> bool:
        """Take the space, with as much free again; return whether it is held."""
        try:
            if self._path.exists() and self._path.stat().st_size == self._size_bytes:
                return True
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize < 2 * self._size_bytes:
                return False
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _allocate(descriptor, self._size_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Give the space up; return whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Fill a file; not every system can allocate space without writing."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        while size_bytes > 0:
            size_bytes -= os.write(descriptor, bytes(size_bytes))
