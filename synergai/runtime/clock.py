"""Time: the gateway's monotonic clock with a fixed offset to Unix time, and delays of retries."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
MAX_DOWNTIME_S: Final = 7 * 86_400.0
"""Longest plausible time between two boots of the machine."""


class ClockReading(NamedTuple):
    """One instant on the clocks of a machine.

    Attributes:
        boot_id: identifier of the machine's boot; empty if unknown.
        since_boot: seconds since that boot, suspended ones included; this clock cannot be set.
        unix: Unix time of the process's `Clock`.
    """

    boot_id: str = ""
    since_boot: float = 0.0
    unix: float = 0.0


def time_between(earlier: ClockReading, later: ClockReading) -> float:
    """Return the seconds between readings of two processes of one machine.

    Within a boot, the Unix time does not matter. Across boots only the Unix time is known; the
    result is limited to 0 to `MAX_DOWNTIME_S`.
    """
    if earlier.boot_id and earlier.boot_id == later.boot_id:
        return later.since_boot - earlier.since_boot
    return min(max(0.0, later.unix - earlier.unix), MAX_DOWNTIME_S)


class Clock:
    """Monotonic seconds, convertible to and from Unix time.

    The offset is read once, so a step of the system clock changes neither deadlines nor durations.
    """

    def __init__(self) -> None:
        self._unix_at_zero = time.time() - time.monotonic()
        self._boot_id = _boot_id()

    now = staticmethod(time.monotonic)
    """Returns the current time in monotonic seconds."""

    def unix_now(self) -> float:
        """Return the current Unix time."""
        return self.to_unix(self.now())

    def to_unix(self, monotonic: float) -> float:
        return monotonic + self._unix_at_zero

    def to_monotonic(self, unix: float) -> float:
        return unix - self._unix_at_zero

    def read(self) -> ClockReading:
        """Return the current reading of the machine's clocks, to compare with later processes."""
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return ClockReading(self._boot_id, since_boot, self.unix_now())


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between retries: doubled after each one, with jitter."""

    initial_s: float = 0.1
    max_s: float = 5.0

    def delays(self) -> Iterator[float]:
        """Yield the delays in seconds, without end."""
        delay = self.initial_s
        while True:
            # Jitter keeps clients that lost the same gateway from reconnecting all at once.
            yield delay * random.uniform(0.5, 1.0)
            delay = min(2 * delay, self.max_s)
