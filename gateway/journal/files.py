"""The journal's files in the state directory, and its lock."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.runtime.files import lock_directory

if TYPE_CHECKING:
    from pathlib import Path

DATABASE: Final = "journal.db"
LOG: Final = "journal.db-wal"
INDEX: Final = "journal.db-shm"
"""Index of the log, which SQLite rebuilds."""
MARKER: Final = "journal.marker"
LOCK: Final = "lock"
CLUSTER: Final = "journal.cluster"
"""The cluster whose journal is in PostgreSQL, and the last epoch in which this gateway led it."""


def lock(directory: Path) -> int:
    """Create the state directory if it is missing, and lock it; return the descriptor to close."""
    descriptor = lock_directory(directory, LOCK)
    if descriptor is None:
        raise Unavailable(
            f"another gateway uses the state directory {directory}; choose another one (--state)"
        )
    return descriptor


def is_running(directory: Path) -> bool:
    """Return whether a gateway runs on a state directory."""
    used = [path for path in (directory / LOCK, directory / CLUSTER) if path.exists()]
    if not used:
        raise NotFound(
            f"{directory} is no gateway's state directory: name the gateway's with --state, for a "
            "service /var/lib/synergai-gateway"
        )
    return any(map(_is_held, used))


def _is_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def hold_cluster(directory: Path) -> int:
    """Show that the gateway of a state directory leads its cluster; return the descriptor."""
    descriptor = os.open(directory / CLUSTER, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def check_leads(directory: Path) -> None:
    """Check that commands may change a state directory: its gateway is alone, or leads."""
    path = directory / CLUSTER
    if not path.exists() or _is_held(path):
        return
    raise InvalidInput(
        f"the gateway of {directory} does not lead: run the command on the leader's machine, with "
        "its state directory"
    )


def is_empty(path: Path) -> bool:
    """Return whether a file is missing or has no content."""
    return not path.exists() or path.stat().st_size == 0
