"""What agents say, checked value by value."""

from __future__ import annotations

import math
from typing import Final

from synergai.errors import InvalidInput
from synergai.runtime.text import printable

_MAX_DETAIL: Final = 1000


class ProtocolViolation(InvalidInput):
    """An agent said what cannot be true; its connection is ended."""


def checked_seconds(seconds: float, what: str) -> float:
    """Return a time that a worker measured.

    Raises:
        ProtocolViolation: it is negative or not a number.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ProtocolViolation(f"{what} must be 0 or more seconds, not {seconds}")
    return seconds


def shown(detail: str) -> str:
    """What a worker says of a fault, fit for a terminal: clients are told it."""
    return printable(detail[:_MAX_DETAIL])
