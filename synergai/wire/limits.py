"""Default limits, apart from the gRPC code so that settings can use them without importing it."""

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
