"""Files of services: replaced atomically, changed durably, and owned by the service."""

from __future__ import annotations

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
