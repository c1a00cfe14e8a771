"""Files and URLs: finding what a path or pattern names, and opening it.

A URL, such as ``s3://bucket/photos/*.jpg``, is read by fsspec; everything else is a local path.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast

from synergai.data.extras import import_optional
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC: Final = re.compile(r"[*?\[]")


class Location(NamedTuple):
    """A file that was found.

    Attributes:
        path: local path or URL, as given or as the pattern matched it.
        size: bytes; -1 if unknown.
        modified: what changes with the content, in addition to the size, such as the time of
            modification; empty if unknown.
        listed: whether it was found in a directory instead of being named.
    """

    path: str
    size: int = -1
    modified: str = ""
    listed: bool = False


def is_url(path: str) -> bool:
    """Return whether a path is a URL, which fsspec reads."""
    return _URL.match(path) is not None


def suffix_of(path: str) -> str:
    """Return the suffix of a path or URL in lower case, with its dot; empty without one."""
    name = path.partition("?")[0] if is_url(path) else path
    return PurePath(name).suffix.lower()


def to_url(path: str) -> str:
    """Return the URL under which another process finds a file; for local paths, ``file://``."""
    return path if is_url(path) else Path(path).absolute().as_uri()


def open_file(path: str) -> IO[bytes]:
    """Open a file or URL for reading."""
    if is_url(path):
        return cast("IO[bytes]", _fsspec().open(path, "rb").open())
    return Path(path).open("rb")


def read_file(path: str, limit: int) -> bytes:
    """Return the content of a file or URL."""
    if is_url(path):
        with open_file(path) as file:
            data = file.read(limit + 1)
    else:
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


def locate(path: str) -> Location:
    """Return a local file with its size and time, or a URL as it is."""
    if is_url(path):
        return Location(path)
    status = Path(path).stat()
    return Location(path, status.st_size, str(status.st_mtime_ns))


def find(pattern: str) -> Iterator[Location]:
    """Yield the files that a path, directory or pattern names, in the order of their names.

    Directories are searched recursively; hidden files, and links to directories, are left out.

    Args:
        pattern: local path or URL; ``*``, ``?``, ``[…]`` and ``**`` are patterns, unless a local
            file is called like that.
    """
    if is_url(pattern):
        yield from _find_url(pattern)
    elif Path(pattern).is_dir():
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


def _walk(directory: str) -> Iterator[Location]:
    """Yield the files below a directory; only the names of one directory at a time are held."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield locate(str(path))._replace(listed=True)


def _find_url(pattern: str) -> Iterator[Location]:
    fs, path = _file_system(pattern)
    details: dict[str, dict[str, Any]]
    try:
        if _MAGIC.search(path):
            details, listed = fs.glob(path, detail=True), False
        elif fs.isdir(path):
            details, listed = fs.find(path, detail=True), True
        else:
            yield _describe(fs.unstrip_protocol(path), fs.info(path), listed=False)
            return
    except FileNotFoundError:
        raise InvalidInput(f"{pattern}: no such file or directory") from None
    files = sorted(name for name, info in details.items() if info.get("type") == "file")
    if not files:
        raise InvalidInput(f"{pattern}: no file matches")
    for name in files:
        yield _describe(fs.unstrip_protocol(name), details[name], listed=listed)


_VERSIONS: Final = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "last_modified")
"""Properties that file systems of fsspec report of a file, and that change with its content."""


def _describe(url: str, info: dict[str, Any], *, listed: bool) -> Location:
    size = info.get("size")
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return Location(url, -1 if size is None else int(size), version, listed)


def _fsspec() -> Any:
    return import_optional("fsspec", "URLs")


def _file_system(url: str) -> tuple[Any, str]:
    fsspec = _fsspec()
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        # Unknown protocols, and those whose own package is missing.
        raise InvalidInput(f"{url}: {error}") from None
    return fs, path
