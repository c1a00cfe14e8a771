"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
