"""Shares of the file descriptors that gRPC connections may take."""

from __future__ import annotations

import resource
from typing import Final, NamedTuple

from synergai.runtime.processes import MAX_DESCRIPTORS

RESERVED: Final = 512 + 32 + 128 + 64
"""Descriptors for the HTTP port, for work sockets without a connection id, and for files."""
PER_CONNECTION: Final = 3
"""Descriptors of a connection through a front: the client's, and both ends of the server's."""
_FEWEST: Final = 32


class ConnectionLimits(NamedTuple):
    """Most gRPC connections on each port; gRPC closes further ones."""

    clients: int
    agents: int


def connection_limits(descriptors: int, *, native: bool = False) -> ConnectionLimits:
    """Return the limits for a process that may open this number of file descriptors.

    Clients get half of what is not reserved. Each connection takes `PER_CONNECTION`, that of an
    agent one more for work, and that of a client of the native server a single one.
    """
    half = (descriptors - RESERVED) // 2
    return ConnectionLimits(
        max(_FEWEST, half // (1 if native else PER_CONNECTION)),
        max(_FEWEST, half // (PER_CONNECTION + 1)),
    )


def current_connection_limits(*, native: bool) -> ConnectionLimits:
    """Return the limits for this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return connection_limits(descriptors, native=native)
