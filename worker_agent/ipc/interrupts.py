"""The messages on the pipe that interrupts a computing run: one run number each."""

from __future__ import annotations

import struct
from typing import Final

_RUN: Final = struct.Struct("<Q")

SIZE: Final = _RUN.size
"""Size of a message in bytes; below PIPE_BUF, so that a write is atomic."""


def encode(run: int) -> bytes:
    """Return the message that interrupts `run`."""
    return _RUN.pack(run)


def decode(message: bytes) -> int:
    """Return the run that a message of `SIZE` bytes interrupts."""
    (run,) = _RUN.unpack(message)
    return int(run)
