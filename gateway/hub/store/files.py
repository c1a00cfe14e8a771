"""Files of the store, in a directory or any file system that fsspec supports.

All methods block, and are called in the store's threads. Names are relative paths with slashes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from synergai.errors import InvalidInput, Overloaded, Unavailable
from synergai.runtime.files import sync_path
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY: Final = ".new-"
"""Prefix of the names of files that are being written."""


class Files(Protocol):
    """Files of the store. A file is complete or absent, whenever it is looked at.

    All methods raise `OSError`, or `Unavailable` if the storage cannot be reached.
    """

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files below a folder by name; none if it does not exist."""

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from an offset, or fewer at the end of the file; None for all."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a small file."""

    def adopt(self, name: str, file: Path) -> None:
        """Move a file of this machine into the store."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def sizes(self, folder: str) -> dict[str, int]:
        return dict(self._sizes(self.root / folder))

    def _sizes(self, folder: Path) -> Iterator[tuple[str, int]]:
        for current, _, names in os.walk(folder):
            for name in names:
                path = Path(current, name)
                if name.startswith(_TEMPORARY):  # of a process that was killed
                    path.unlink(missing_ok=True)
                else:
                    yield path.relative_to(self.root).as_posix(), path.stat().st_size

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        with (self.root / name).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    def write(self, name: str, data: bytes) -> None:
        new = self._new(name)
        try:
            with new.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.root / name)
        finally:
            new.unlink(missing_ok=True)
        sync_path(new.parent)

    def adopt(self, name: str, file: Path) -> None:
        """Move a file into the directory; copy it if it is on another file system."""
        new = self._new(name)
        try:
            shutil.move(file, new)
            new.chmod(0o600)
            sync_path(new)  # a copy is not on the disk yet
            new.replace(self.root / name)
        finally:
            new.unlink(missing_ok=True)
        sync_path(new.parent)

    def remove(self, name: str) -> None:
        """Remove a file, and its folder if nothing else is in it."""
        path = self.root / name
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()

    def _new(self, name: str) -> Path:
        folder = (self.root / name).parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"{_TEMPORARY}{secrets.token_hex(8)}"


class FsspecFiles:
    """A file system of fsspec, by a URL such as ``s3://bucket/prefix``."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ModuleNotFoundError:
            raise InvalidInput(
                f"--store {url} needs fsspec, which is not installed; {pip_install('store')}; the "
                "file system needs a library of its own, such as s3fs"
            ) from None
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise InvalidInput(f"--store {url} cannot be used: {error}") from None
        self._root = str(root).rstrip("/")
        self._url = url

    def sizes(self, folder: str) -> dict[str, int]:
        with self._reached():
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
        return {
            str(path)[len(self._root) + 1 :]: int(facts["size"])
            for path, facts in found.items()
            if not str(path).rpartition("/")[2].startswith(_TEMPORARY)
        }

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        end = None if size is None else offset + size
        with self._reached():
            data: Any = self._fs.cat_file(self._path(name), start=offset, end=end)
        return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        with self._reached():
            new = self._new(name)
            self._fs.pipe_file(new, data)
            self._fs.mv(new, self._path(name))

    def adopt(self, name: str, file: Path) -> None:
        """Copy a file of this machine, and remove it."""
        with self._reached():
            new = self._new(name)
            self._fs.put_file(str(file), new)
            self._fs.mv(new, self._path(name))
        file.unlink()

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), self._reached():
            self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _new(self, name: str) -> str:
        folder = self._path(name).rpartition("/")[0]
        self._fs.makedirs(folder, exist_ok=True)
        return f"{folder}/{_TEMPORARY}{secrets.token_hex(8)}"

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Raise `Unavailable` for errors of the file system's library, but not the system's."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise Unavailable(
                f"the store {self._url} cannot be reached: {type(error).__name__}: {error}"
            ) from error


def open_files(location: str, state: Path) -> Files:
    """Return the files of a store, by default in the state directory."""
    if "://" in location:
        return FsspecFiles(location)
    return LocalFiles(Path(location) if location else state / "store")


class Threads:
    """Runs blocking operations on a storage; with one thread, one after another."""

    def __init__(self, count: int, name: str, location: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._location = location

    async def run(self, operation: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, operation)
        except OSError as error:
            if error.errno in _FULL:
                raise Overloaded(
                    "the disk of the store of engines is full: remove versions with "
                    "'synergai engines remove', or free space"
                ) from error
            fault = f"{error.filename or self._location}: {error.strerror or error}"
            raise Unavailable(f"the store of engines cannot be used: {fault}") from error

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)
