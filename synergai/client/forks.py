"""Refusal of clients in forked processes."""

from __future__ import annotations

import functools
import os

from synergai.errors import NotSupported


def check_not_forked() -> None:
    """Check that this process, and not one that it was forked from, was the first to use a client.

    The threads and event loops of gRPC and of `SyncClient` do not survive a fork: calls of the
    child would never return.
    """
    if is_forked():
        raise NotSupported(
            "gRPC does not work in a process that was forked from one that has used a client: "
            "start it with 'spawn' or 'forkserver', or fork before the first client"
        )


def is_forked() -> bool:
    """Return whether this process was forked from one that has used a client."""
    return _first_user() != os.getpid()


@functools.cache
def _first_user() -> int:
    """Return the id of the process that called this first."""
    return os.getpid()
