"""The gateway's clock: monotonic time with a fixed offset to Unix time."""

from __future__ import annotations

import time


class Clock:
    """Monotonic seconds, convertible to and from Unix time.

    The offset is read once, so a step of the system clock changes neither deadlines nor durations.
    """

    def __init__(self) -> None:
        self._unix_at_zero = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the current time in monotonic seconds."""
        return time.monotonic()

    def to_unix(self, monotonic: float) -> float:
        """Convert monotonic seconds to Unix time."""
        return monotonic + self._unix_at_zero

    def to_monotonic(self, unix: float) -> float:
        """Convert Unix time to monotonic seconds."""
        return unix - self._unix_at_zero
