"""Shares of the file descriptors that gRPC connections may take."""

from __future__ import annotations

import resource
from typing import Final, NamedTuple

from synergai.runtime.processes import MAX_DESCRIPTORS

RESERVED: Final = 512 + 32 + 128 + 64
"""Descriptors for the HTTP port, for work sockets without a connection id, and for files."""
_FEWEST: Final = 32


class ConnectionLimits(NamedTuple):
    """Most gRPC connections on each port; further ones are closed."""

    clients: int
    agents: int


def connection_limits(descriptors: int) -> ConnectionLimits:
    """Return the limits for a process that may open this number of file descriptors.

    Clients get half of what is not reserved. The connection of an agent takes another one for work.
    """
    half = (descriptors - RESERVED) // 2
    return ConnectionLimits(max(_FEWEST, half), max(_FEWEST, half // 2))


def current_connection_limits() -> ConnectionLimits:
    """Return the limits for this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return connection_limits(descriptors)
