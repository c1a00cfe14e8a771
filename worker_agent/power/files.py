"""Access to the files of /proc, /sys and /etc below a configurable root.

All modules of this package use it, so that tests can substitute a directory for a board.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MAX_CPUS: Final = 8192
"""Maximum that Linux supports; bounds the size of a parsed list."""


@dataclass(frozen=True)
class MachineFiles:
    """Small text files of the kernel and the board, addressed by absolute paths."""

    root: Path = Path("/")

    def path(self, path: str) -> Path:
        """Return the location of the absolute `path` below the root."""
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts:
            raise InvalidInput(f"{path!r} is not an absolute path without '..'")
        return self.root.joinpath(*pure.parts[1:])

    def exists(self, path: str) -> bool:
        """Return whether `path` exists and may be looked up."""
        try:
            return self.path(path).exists()
        except PermissionError:
            return False

    def read(self, path: str) -> str:
        """Return the content of `path` without surrounding whitespace and byte-order mark."""
        return self.path(path).read_text(encoding="utf-8-sig", errors="replace").strip()

    def write(self, path: str, text: str) -> None:
        """Write `text` to the existing file `path`; never create one."""
        where = self.path(path)
        try:
            with where.open("r+", encoding="utf-8") as file:
                file.truncate(0)
                file.write(text)
        except OSError as error:
            # The error of a refused write does not name the file.
            raise OSError(error.errno, error.strerror, str(where)) from error

    def find(self, folder: str, pattern: str) -> list[str]:
        """Return the absolute paths below `folder` that match the glob `pattern`, sorted."""
        return [self._absolute(path) for path in sorted(self.path(folder).glob(pattern))]

    def make_directory(self, path: str) -> None:
        self.path(path).mkdir()

    def remove_directory(self, path: str) -> None:
        """Remove one directory; in cgroupfs, files of the kernel do not prevent this."""
        self.path(path).rmdir()

    def _absolute(self, path: Path) -> str:
        return "/" + path.relative_to(self.root).as_posix()


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a CPU list in the kernel's notation, such as ``0-3,6``."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise InvalidInput(f"{text!r} is not a CPU list; expected a list such as 0-3,6")
        first, last = int(found[1]), int(found[2] or found[1])
        if last >= _MAX_CPUS:
            raise InvalidInput(f"{text!r}: CPU {last} does not exist")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Format a set of CPUs in the kernel's notation, such as ``0-3,6``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
