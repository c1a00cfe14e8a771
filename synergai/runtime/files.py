"""Files of services: replaced atomically, changed durably, owned by the service, and shared."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` at the end of the block, atomically and durably.

    Readers see the old or the new content. Only the owner can read it while it is written, as
    ``.NAME-…``, which a process that is killed leaves behind.
    """
    with (
        naming(path),
        NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file,
    ):
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(mode)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Write `text` to `path`; see `replacing`."""
    with replacing(path, mode) as file:
        file.write(text.encode())


def sync_path(path: Path) -> None:
    """Make a file durable; of a directory, which files were created, renamed and removed in it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory for the owner, unless it exists, and those above it; all durably."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    for each in missing:
        sync_path(each.parent)


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


T = TypeVar("T")
_PRIVATE = 0o600
_VERSION = 1
"""Version of the form in which values are written."""

_log = logging.getLogger(__name__)


class StateUnusable(Unavailable):
    """A state file cannot be used; the message names its path."""


class StateDamaged(StateUnusable):
    """A state file is damaged."""

    def __init__(self, path: Path, fault: str, remedy: str) -> None:
        super().__init__(f"{path} is damaged: {fault}. {remedy}")
        self.fault = fault


class _Content(Struct, frozen=True):
    """What a file holds: the value, and the SHA-256 of its bytes, by which damage is noticed."""

    version: int
    sha256: str = ""
    value: Raw = Raw(b"")


class StateFile(Generic[T]):
    """A value in a file that only its owner can read; `remedy` says what to do if it is damaged."""

    def __init__(self, path: Path, kind: type[T], remedy: str) -> None:
        self.path = path
        self._kind = kind
        self._remedy = remedy

    def read(self) -> T | None:
        """Return the value; None if there is no file."""
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=_Content)
            if content.version != _VERSION:
                raise StateUnusable(
                    f"{self.path} has version {content.version}, and this SynergAI reads version "
                    f"{_VERSION}; install the one that wrote it, or a later one"
                )
            if hashlib.sha256(content.value).hexdigest() != content.sha256:
                raise StateDamaged(self.path, "its checksum is wrong", self._remedy)
            return msgspec.json.decode(content.value, type=self._kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnusable(f"{self.path} cannot be read: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StateDamaged(self.path, str(error), self._remedy) from error

    def write(self, value: T) -> None:
        """Replace the value, durably."""
        raw = msgspec.json.format(msgspec.json.encode(value))
        text = msgspec.json.encode(_Content(_VERSION, hashlib.sha256(raw).hexdigest(), Raw(raw)))
        try:
            write_atomic(self.path, f"{text.decode()}\n", _PRIVATE)
            # A command that root runs must not keep the service, which is another user, from it.
            own_like(self.path.parent, self.path)
        except OSError as error:
            raise StateUnusable(f"{self.path} cannot be written: {error.strerror}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes and threads from changing the value, to read and write it."""
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        except OSError as error:
            raise StateUnusable(f"{lock} cannot be opened: {error.strerror}") from error
        try:
            own_like(self.path.parent, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextmanager
def without_path(fault: str) -> Iterator[None]:
    """Log an error of a state file, and tell a remote client only of its `fault`."""
    try:
        yield
    except StateUnusable as error:
        _log.error("%s: %s", fault, error)
        raise Unavailable(f"{fault}; the gateway's log says why") from None
