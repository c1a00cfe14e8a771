"""One clock for the whole gateway: monotonic, with a fixed relation to the calendar."""

from __future__ import annotations

import time


class Clock:
    """Monotonic seconds, and the Unix time that belongs to an instant.

    The relation is taken once: a jump of the machine's calendar then neither moves a deadline
    nor bends a duration.
    """

    def __init__(self) -> None:
        self._unix_at_zero = time.time() - time.monotonic()

    def now(self) -> float:
        """The present instant, in monotonic seconds."""
        return time.monotonic()

    def unix(self, instant: float) -> float:
        """The Unix time of a monotonic instant."""
        return instant + self._unix_at_zero

    def instant(self, unix: float) -> float:
        """The monotonic instant of a Unix time."""
        return unix - self._unix_at_zero
