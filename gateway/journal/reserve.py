"""Disk space that the journal holds back, and gives up once the disk is full.

The progress of jobs that run can then still be recorded, while new jobs are refused.
"""

from __future__ import annotations

import errno
import os
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""About the size of the write-ahead log, which does not grow further once it has been reused."""


class Space(Enum):
    """Room for the journal on its disk."""

    AMPLE = auto()
    """The reserve is held: jobs are accepted."""
    RESERVE = auto()
    """The reserve has been given up: accepted jobs are recorded in its room, new ones refused."""
    FULL = auto()
    """Nothing can be written."""


class Reserve:
    """File that occupies the reserved space; one of an earlier process is taken over."""

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
