"""How long an engine takes for batches: what profile, gateway and worker tell each other of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds by size of the batch.

    Attributes:
        by_size: of a batch of 1, 2, 4, 8, … rows, in this order; at least one.
    """

    by_size: tuple[float, ...]

    @property
    def most(self) -> int:
        """The largest batch that it knows of, in rows."""
        return 1 << len(self.by_size) - 1

    def seconds(self, rows: int) -> float:
        """Time of a batch of `rows`, 1 to `most`, on the line between its neighbours' times."""
        power = rows.bit_length() - 1
        known, low = self.by_size[power], 1 << power
        if rows == low:
            return known
        return known + (rows - low) / low * (self.by_size[power + 1] - known)
