"""Files of inputs: finding those that a path, pattern or manifest names, and reading them.

Each line of a manifest is a path, relative to the manifest. Empty lines and lines that begin with
``#`` are left out.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.data.text_files import read_lines
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator


_MAGIC: Final = re.compile(r"[*?\[]")


class InputFile(NamedTuple):
    """A file that was found.

    Attributes:
        path: as given, or as the pattern matched it.
        size: bytes.
        modified: time of the last modification, in nanoseconds since 1970.
        listed: whether it was found in a directory instead of being named.
    """

    path: str
    size: int
    modified: int
    listed: bool = False


def suffix_of(path: str) -> str:
    """Return the suffix of a path in lower case, with its dot; empty without one."""
    return Path(path).suffix.lower()


def read_file(path: str, limit: int) -> bytes:
    """Return the content of a file, of at most `limit` bytes."""
    # One call for the size and one for the content; `read` of a file object copies.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = _read_all(descriptor, min(size, limit) + 1)
    finally:
        os.close(descriptor)
    if not data:
        raise InvalidInput("the file is empty")
    if len(data) > limit:
        raise InvalidInput(f"the file is larger than {limit:,} bytes, the limit of a message")
    return data


def _read_all(descriptor: int, limit: int) -> bytes:
    data = os.read(descriptor, limit)
    # A read may end early at signals, and at 2 GiB.
    while len(data) < limit and (more := os.read(descriptor, limit - len(data))):
        data += more
    return data


def locate(path: str, *, listed: bool = False) -> InputFile:
    """Return a file with its size and time."""
    status = Path(path).stat()
    return InputFile(path, status.st_size, status.st_mtime_ns, listed)


def find(pattern: str) -> Iterator[InputFile]:
    """Yield the files that a path, directory or pattern names, in the order of their names.

    Directories are searched recursively; hidden files, and links to directories, are left out.

    Args:
        pattern: ``*``, ``?``, ``[…]`` and ``**`` are patterns, unless a file is called like that.
    """
    if Path(pattern).is_dir():
        yield from _walk(pattern)
    elif os.path.lexists(pattern):
        yield locate(pattern)
    elif _MAGIC.search(pattern):
        found = False
        # Sorted by name: the position of an input must not depend on the file system.
        # `Path.glob` would find hidden files.
        for path in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
            if Path(path).is_file():
                found = True
                yield locate(path)
        if not found:
            raise InvalidInput(f"{pattern}: no file matches")
    else:
        raise InvalidInput(f"{pattern}: no such file or directory")


def _walk(directory: str) -> Iterator[InputFile]:
    """Yield the files below a directory; only the names of one directory at a time are held."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield locate(str(path), listed=True)


MANIFEST_SUFFIX: Final = ".txt"


class ManifestEntry(NamedTuple):
    """A line of a manifest.

    Attributes:
        path: path of the file, ready to be opened.
        name: the input's name: the path as the manifest has it.
    """

    path: str
    name: str
    line: int


def read_manifest(path: str, encoding: str) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest, which is read line by line."""
    # File names need not be text; `os.fsencode` restores these bytes.
    lines = read_lines(path, encoding, errors="surrogateescape")
    try:
        for number, line in enumerate(lines, 1):
            listed = _checked(line.strip(), number)
            if listed and not listed.startswith("#"):
                yield ManifestEntry(str(Path(path).parent / listed), listed, number)
    except InvalidInput as error:
        raise InvalidInput(f"{path}, {error}") from None


def _checked(path: str, number: int) -> str:
    if "\0" in path:
        raise InvalidInput(f"line {number}: a path has a zero byte; is it a manifest?")
    return path
