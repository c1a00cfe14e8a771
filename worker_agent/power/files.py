"""The files through which Linux is looked at and steered, all under one root.

Everything in this package and in telemetry goes through here, so that a folder can stand for a
whole board in the tests.
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
_MOST_CPUS: Final = 8192
"""What Linux supports at most; a limit against absurd lists."""


@dataclass(frozen=True, slots=True)
class Files:
    """Small text files of the kernel and the board, by their absolute paths.

    Attributes:
        root: what stands for ``/``.
    """

    root: Path = Path("/")

    def path(self, path: str) -> Path:
        """Where the absolute `path` really is.

        Raises:
            InvalidInput: it is not absolute, or leads upwards.
        """
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts:
            raise InvalidInput(f"{path!r} is not an absolute path without '..'")
        return self.root.joinpath(*pure.parts[1:])

    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""
        return self.path(path).exists()

    def read(self, path: str) -> str:
        """The text at `path`, without blanks around it.

        Raises:
            OSError: it cannot be read.
        """
        return self.path(path).read_text(encoding="utf-8", errors="replace").strip()

    def write(self, path: str, text: str) -> None:
        """Put `text` where `path` is; nothing is created that the kernel does not offer.

        Raises:
            OSError: there is no such file, or the kernel refuses.
        """
        where = self.path(path)
        try:
            with where.open("r+", encoding="utf-8") as file:
                file.truncate(0)
                file.write(text)
        except OSError as error:
            # A refused write does not say by itself which file it was about.
            raise OSError(error.errno, error.strerror, str(where)) from error

    def find(self, folder: str, pattern: str) -> list[str]:
        """Absolute paths below `folder` that match the glob `pattern`, sorted."""
        return [self._absolute(path) for path in sorted(self.path(folder).glob(pattern))]

    def make_directory(self, path: str) -> None:
        """Create one directory.

        Raises:
            OSError: it exists, or the kernel refuses.
        """
        self.path(path).mkdir()

    def remove_directory(self, path: str) -> None:
        """Remove one directory; in cgroupfs, that may have files of the kernel's in it.

        Raises:
            OSError: something is still in it.
        """
        self.path(path).rmdir()

    def _absolute(self, path: Path) -> str:
        return "/" + path.relative_to(self.root).as_posix()


def parse_cpus(text: str) -> frozenset[int]:
    """The numbers in a kernel's list of CPUs, such as ``0-3,6``.

    Raises:
        InvalidInput: it is not such a list.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise InvalidInput(f"{text!r} is not a list of CPUs: write such as 0-3,6")
        first, last = int(found[1]), int(found[2] or found[1])
        if last >= _MOST_CPUS:
            raise InvalidInput(f"{text!r}: there is no CPU {last}")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """The kernel's way to write a set of CPUs: ``0-3,6``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
