"""Validation of values that agents send."""

from __future__ import annotations

import math
from typing import Final

from synergai.errors import InvalidInput
from synergai.runtime.text import printable

_MAX_DETAIL: Final = 1000


class ProtocolViolation(InvalidInput):
    """An agent sent an impossible value; its connection is closed."""


def checked_seconds(seconds: float, what: str) -> float:
    """Return a duration measured by a worker.

    Raises:
        ProtocolViolation: it is negative or not finite.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ProtocolViolation(f"{what} must be at least 0 seconds, not {seconds}")
    return seconds


def printable_detail(detail: str) -> str:
    """Return a worker's error detail, truncated and safe for terminals: clients see it."""
    return printable(detail[:_MAX_DETAIL])
