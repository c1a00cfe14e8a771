"""Sets of query numbers as ranges."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ranges:
    """Set of `total` integers, kept as sorted disjoint ranges ``[start, stop)``."""

    __slots__ = ("_ranges", "total")

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self.total = 0

    @classmethod
    def complement(cls, done: Sequence[tuple[int, int]], stop: int) -> Ranges:
        """Return ``[0, stop)`` without the ranges in `done`."""
        left = cls()
        if not done and stop > 0:  # fast path: a new job
            left._ranges.append((0, stop))
            left.total = stop
            return left
        position = 0
        for first, last in sorted(done):
            if position < min(first, stop):
                left.add(position, min(first, stop))
            position = max(position, last)
        if position < stop:
            left.add(position, stop)
        return left

    def add(self, start: int, stop: int) -> None:
        """Add ``[start, stop)``, merging with its neighbours."""
        if start >= stop:
            raise ValueError(f"[{start}, {stop}) is empty")
        ranges = self._ranges
        at = bisect_left(ranges, (start, stop))
        overlaps_left = at > 0 and ranges[at - 1][1] > start
        overlaps_right = at < len(ranges) and ranges[at][0] < stop
        if overlaps_left or overlaps_right:
            raise ValueError(f"[{start}, {stop}) overlaps the set")
        self.total += stop - start
        if at < len(ranges) and ranges[at][0] == stop:
            stop = ranges.pop(at)[1]
        if at > 0 and ranges[at - 1][1] == start:
            at -= 1
            start = ranges.pop(at)[0]
        ranges.insert(at, (start, stop))

    def available(self, limit: int) -> int:
        """Return how many of the queries are below `limit`."""
        if not self._ranges or self._ranges[-1][1] <= limit:
            return self.total
        return sum(min(stop, limit) - start for start, stop in self._ranges if start < limit)

    def take(self, count: int, limit: int) -> tuple[int, int] | None:
        """Remove and return the lowest range: at most `count` queries, all below `limit`."""
        if not self._ranges:
            return None
        start, stop = self._ranges[0]
        end = min(stop, start + count, limit)
        if end <= start:
            return None
        if end == stop:
            self._ranges.pop(0)
        else:
            self._ranges[0] = (end, stop)
        self.total -= end - start
        return start, end
