"""Limits and other constants that both ends of a connection agree on.

They are apart from the gRPC code, so that settings can use them without importing it.

Both ends of the hub detect a dead peer by heartbeats: the agent sends them at the interval set by
the gateway, which acknowledges each. With each, the agent also sends an empty report on its work
socket, which a gateway reads in time even while gRPC calls queue up.

Their tolerances differ. Queries of a silent worker run late, so the gateway reassigns them soon. An
agent that leaves its gateway aborts everything it runs, while a dead gateway usually shows as a
broken connection; a silent one has rather stalled and resumes. It leaves a silent gateway
early only for another one that listens to agents, which the standbys of a leader do not.
"""

from __future__ import annotations

from typing import Final

DEFAULT_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest gRPC message; gRPC's default of 4 MiB is too small for eight ordinary images."""
ENVELOPE_BYTES: Final = 64 * 1024
"""Room in a message around an input of a job: its name, and the fields of the message."""
MAX_CALLS_PER_CONNECTION: Final = 256
"""Calls that a client may have open on one connection; gRPC clients delay the rest.

A stream is one call, however many requests it has.
"""
DEFAULT_MAX_UNREAD_BYTES: Final = 512 * 1024 * 1024
"""Bytes of responses that the clients of a server have not read yet."""
MAX_HELD_BYTES: Final = 128 * 1024 * 1024
"""Tensors that an agent holds until the agents of the next stages pull them."""
PROBE_BYTES: Final = 512 * 1024
"""Zeros in a message that measures a link. Two of them are enough for `LinkMeter`, and one fits the
smallest limit of messages."""
MAX_INCOMPLETE_BYTES: Final = 512 * 1024 * 1024
"""Of requests that have not arrived in full, of all calls on a port."""

HUB_VERSION: Final = 3
"""Protocol version; incremented on incompatible changes."""
WORKER_LOST_AFTER: Final = 3
"""Number of missed heartbeats after which a worker is lost."""
GATEWAY_SILENT_AFTER: Final = 3
"""Number of consecutive unacknowledged heartbeats after which agents look for another gateway."""
GATEWAY_LOST_AFTER: Final = 20
"""Number of consecutive unacknowledged heartbeats after which a gateway is lost."""
