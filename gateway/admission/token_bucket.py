"""Token buckets: limits on a rate that allow bursts of one second."""

from __future__ import annotations


class TokenBucket:
    """Limit on a rate. Time is passed in, in monotonic seconds.

    The bucket fills at `rate` and holds what arrives in a second, but at least one token. Something
    that costs more than a full bucket passes when the bucket is full, and leaves a debt that has
    to be filled before anything else passes: it is late, but not refused for ever.
    """

    __slots__ = ("_at", "_level", "_rate", "capacity")

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self.capacity = max(rate, 1.0)
        self._level = self.capacity
        self._at = now

    def wait_s(self, cost: float, now: float) -> float:
        """Return the seconds until `cost` may be taken; 0 if it may now."""
        missing = min(cost, self.capacity) - self._filled(now)
        return missing / self._rate if missing > 0 else 0.0

    def take(self, cost: float, now: float) -> None:
        """Take `cost`, for which `wait_s` must have returned 0."""
        self._level = self._filled(now) - cost
        self._at = now

    def used(self, now: float) -> float:
        """Return the tokens that are missing from a full bucket."""
        return self.capacity - self._filled(now)

    def change_rate(self, rate: float, now: float) -> None:
        """Fill at another rate from now on; what was taken stays taken."""
        used = self.used(now)
        self._rate = rate
        self.capacity = max(rate, 1.0)
        self._level = self.capacity - used
        self._at = now

    def _filled(self, now: float) -> float:
        return min(self.capacity, self._level + (now - self._at) * self._rate)
