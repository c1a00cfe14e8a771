"""Deadlines as callers give them, and as the protocol carries them."""

from __future__ import annotations

import math
from typing import Final

from synergai.errors import InvalidInput

_NO_LIMIT_S: Final = 10 * 365 * 86400.0
"""A deadline beyond is none: clocks and the protocol's integers have their limits."""


def checked_deadline(seconds: float | None) -> float | None:
    """A caller's deadline; None if it is so late that it is none.

    Args:
        seconds: from now on; None means no deadline.

    Raises:
        InvalidInput: it is not a number.
    """
    if seconds is None or seconds > _NO_LIMIT_S:
        return None
    if math.isnan(seconds):
        raise InvalidInput("a deadline is a number of seconds, not nan")
    return seconds


def microseconds(seconds: float) -> int:
    """The protocol's parameter ``timeout``, of which 0 would mean that there is none."""
    return max(1, round(seconds * 1e6))
