"""Content that is being received, in a directory of this machine.

A file grows by appending until it has its size; it is complete once its digest is verified. What is
interrupted continues where it stopped, also after a restart. All methods block: call them in
threads.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEPT_S: Final = 24 * 3600.0
"""Time after which `Contents.expire` removes an upload that was not continued."""
_COMPLETE: Final = ".complete"


class Contents:
    """Contents in a directory, by SHA-256.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._now = now
        self._appending = threading.Lock()

    def received(self, sha256: str) -> int:
        """Return the number of bytes that have been received of a content."""
        for path in (self._complete(sha256), self._part(sha256)):
            if path.exists():
                return path.stat().st_size
        return 0

    def append(self, sha256: str, offset: int, data: bytes, size: int) -> int:
        with self._appending:
            return self._append(sha256, offset, data, size)

    def _append(self, sha256: str, offset: int, data: bytes, size: int) -> int:
        received = self.received(sha256)
        if offset != received:
            raise Unavailable(
                f"the content is at {received:,} bytes, not at {offset:,}: another transfer has "
                "gone on; begin again"
            )
        if received + len(data) > size:
            raise InvalidInput(f"the content has more than the {size:,} bytes of the manifest")
        if data:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._part(sha256).open("ab", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
        return received + len(data)

    def verify(self, sha256: str, size: int) -> bool:
        """Return whether a content that has its full size also has its digest.

        Otherwise it is removed, like a file that is larger.
        """
        part = self._part(sha256)
        if self._complete(sha256).exists():
            return True
        if not size:  # nothing is ever appended
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.touch()
        received = part.stat().st_size if part.exists() else -1
        if received > size:
            part.unlink()
        if received != size:
            return False
        with part.open("r+b") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if found != sha256:
            part.unlink(missing_ok=True)
            return False
        with suppress(FileNotFoundError):  # another call has verified it first
            part.replace(self._complete(sha256))
        return self._complete(sha256).exists()

    def complete(self, sha256: str) -> Path | None:
        """Return the file of a verified content; None if there is none."""
        path = self._complete(sha256)
        return path if path.exists() else None

    def expire(self) -> None:
        """Remove what has not been continued for a long time."""
        if not self.folder.exists():
            return
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if self._now() - path.stat().st_mtime > KEPT_S:
                    path.unlink()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all contents, also of incomplete ones, the least recent first."""
        if not self.folder.exists():
            return {}
        found = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):  # removed or renamed in between
                stat = path.stat()
                found.append((stat.st_mtime_ns, path.name, stat.st_size))
        return {name.removesuffix(_COMPLETE): size for _, name, size in sorted(found)}

    def touch(self, sha256: str) -> None:
        """Make a complete content the most recent one, unless engines have links to it.

        Their files would seem to have changed.
        """
        with suppress(FileNotFoundError):
            if self._complete(sha256).stat().st_nlink == 1:
                os.utime(self._complete(sha256), (self._now(), self._now()))

    def remove(self, sha256: str) -> None:
        self._part(sha256).unlink(missing_ok=True)
        self._complete(sha256).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        existing = self.folder
        while not existing.exists():
            existing = existing.parent
        disk = os.statvfs(existing)
        return disk.f_bavail * disk.f_frsize

    def _part(self, sha256: str) -> Path:
        return self.folder / sha256

    def _complete(self, sha256: str) -> Path:
        return self.folder / f"{sha256}{_COMPLETE}"
