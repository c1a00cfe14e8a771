"""Files of services: replaced atomically, changed durably, and owned by the service."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write `text` to `path` atomically and durably: readers see the old or the new content.

    Only the owner can read it while it is written.
    """
    with (
        naming(path),
        NamedTemporaryFile(
            "w",
            encoding="utf-8",
            newline="",
            dir=path.parent,
            prefix=f".{path.name}-",
            delete=False,
        ) as file,
    ):
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(mode)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def sync_path(path: Path) -> None:
    """Make a file durable; of a directory, which files were created, renamed and removed in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in the system's errors that name none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def ready_file(path: Path | None, **addresses: str) -> Iterator[None]:
    """Keep a JSON file with `addresses` and the process id at `path` while the context is open.

    The file is created atomically. Does nothing if `path` is None.
    """
    if path is None:
        yield
        return
    try:
        write_atomic(path, json.dumps({"pid": os.getpid(), **addresses}) + "\n")
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def lock_directory(directory: Path, name: str) -> int | None:
    """Lock a directory by a file in it, both of which are created if they are missing.

    Return the descriptor to close; None if another process holds the lock.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory / name, flags, 0o600)
        own_like(directory, descriptor)  # root may run a command before the first start
    except OSError as error:
        raise Unavailable(f"cannot write to {directory}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise Unavailable(f"cannot lock {directory}: {error.strerror}") from error
    return descriptor


def own_like(directory: Path, file: Path | int) -> None:
    """Give a file, a path or descriptor, to the owner of a directory if this process runs as root.

    A link is not followed: the owner could have made it.
    """
    if os.geteuid():
        return
    owner = directory.stat()
    # Root may lack the permission in a container, where the service runs as root, too.
    with suppress(PermissionError):
        os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=isinstance(file, int))
