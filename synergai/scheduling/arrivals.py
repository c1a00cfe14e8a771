"""Rate at which queries have arrived lately."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 1.0
"""Time over which arrivals are counted."""
_MAX_COUNTED: Final = 8192
"""Arrivals that are remembered at most."""


class ArrivalRate:
    """Number of arrivals within the last second, per second."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=_MAX_COUNTED)

    def add(self, now: float) -> None:
        """Count an arrival."""
        self._at.append(now)

    def per_s(self, now: float) -> float:
        """Return the rate; of more arrivals than are remembered, that of the last ones."""
        at = self._at
        if len(at) == _MAX_COUNTED and at[0] > now - WINDOW_S:
            return _MAX_COUNTED / max(now - at[0], 1e-6)
        while at and at[0] <= now - WINDOW_S:
            at.popleft()
        return len(at) / WINDOW_S
