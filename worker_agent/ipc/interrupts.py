"""Messages on the pipe that interrupts computing runs: one run id each."""

from __future__ import annotations

import struct
from typing import Final

_RUN: Final = struct.Struct("<Q")

SIZE: Final = _RUN.size
"""Size of a message in bytes; below PIPE_BUF, so that writes are atomic."""


def encode(run_id: int) -> bytes:
    """Return the message that interrupts run `run_id`."""
    return _RUN.pack(run_id)


def decode(message: bytes) -> int:
    """Return the id of the run that a message of `SIZE` bytes interrupts."""
    (run_id,) = _RUN.unpack(message)
    return int(run_id)
