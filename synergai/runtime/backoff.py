"""How long to wait before trying something again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each further try: twice as long each time, with jitter."""

    first_s: float = 0.1
    most_s: float = 5.0

    def delays(self) -> Iterator[float]:
        """The waiting times, without end."""
        pause = self.first_s
        while True:
            # Jitter, so that clients that lost the same gateway do not come back together.
            yield pause * random.uniform(0.5, 1.0)
            pause = min(2 * pause, self.most_s)
