"""The journal's files in the state directory, and its lock."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.files import own_like

if TYPE_CHECKING:
    from pathlib import Path

DATABASE: Final = "journal.db"
LOG: Final = "journal.db-wal"
INDEX: Final = "journal.db-shm"
"""Index of the log, which SQLite rebuilds."""
MARKER: Final = "journal.marker"
RESERVE: Final = "journal.reserve"
CLUSTER: Final = "journal.cluster"
"""The cluster whose journal is in PostgreSQL, and the last epoch in which this gateway led it."""


class StateInUse(Unavailable):
    """A gateway uses the state directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"another gateway uses the state directory {directory}; choose another one (--state)"
        )


def lock(directory: Path) -> int:
    """Create the state directory if it is missing, and lock it; return the descriptor to close."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(directory / "lock", flags, 0o600)
        own_like(directory, descriptor)  # root may check or restore before the first start
    except OSError as error:
        raise Unavailable(f"cannot write to {directory}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StateInUse(directory) from None
    return descriptor


def hold_cluster(directory: Path) -> int:
    """Show that the gateway of a state directory leads its cluster; return the descriptor."""
    descriptor = os.open(directory / CLUSTER, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def check_leads(directory: Path) -> None:
    """Check that commands may change a state directory: its gateway is alone, or leads."""
    try:
        descriptor = os.open(directory / CLUSTER, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    finally:
        os.close(descriptor)
    raise InvalidInput(
        f"the gateway of {directory} does not lead: run the command on the leader's machine, with "
        "its state directory"
    )


def is_empty(path: Path) -> bool:
    """Return whether a file is missing or has no content."""
    return not path.exists() or path.stat().st_size == 0
