"""Waiting jobs of one kind, sorted, in blocks of bounded size.

A single sorted list would move half of its entries on each insertion, and a table of all its jobs
would be rebuilt on each change. Blocks bound both.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from synergai.core.scheduling.state.jobs import JobRecord, Level
    from synergai.domain import EngineName

Entry: TypeAlias = "tuple[float, int, JobRecord]"
"""Rank, sequence and record of a waiting job; sequences are unique, so records never compare."""

BLOCK: Final = 256
"""Entries of a block that was just split; it is split again at twice as many."""
VECTORIZED_FROM: Final = 32
"""Entries that are looked at one by one before blocks are filtered with numpy."""

Head: TypeAlias = "tuple[float, int, Lane, Entries]"
"""Part of a lane: rank and sequence of its first entry, the lane, and the part."""
Opener: TypeAlias = "Callable[[Lane, Entries], Iterable[Entry]]"
"""Returns which entries of a part of a lane to yield, in order."""

_rank: Final = itemgetter(0)


class _Table(NamedTuple):
    """Deadlines and pending queries of a block's jobs, with the bounds of both."""

    deadlines: NDArray[np.float64]
    queries: NDArray[np.float64]
    latest_deadline: float
    fewest_queries: float


class _Block:
    """Consecutive entries of a lane; never empty."""

    __slots__ = ("_table", "entries")

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self._table: _Table | None = None

    def add(self, entry: Entry) -> None:
        insort(self.entries, entry)
        self._table = None

    def remove(self, entry: Entry) -> None:
        del self.entries[bisect_left(self.entries, entry)]
        self._table = None

    def table(self) -> _Table:
        if self._table is None:
            jobs = [entry[2] for entry in self.entries]
            deadlines = np.fromiter((job.job.deadline for job in jobs), np.float64, len(jobs))
            queries = np.fromiter((job.pending.total for job in jobs), np.float64, len(jobs))
            self._table = _Table(deadlines, queries, float(deadlines.max()), float(queries.min()))
        return self._table


class Entries:
    """Entries sorted by rank, then arrival."""

    __slots__ = ("_blocks", "_lasts", "_size")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lasts: list[Entry] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        for block in self._blocks:
            yield from block.entries

    def first(self) -> Entry:
        """Return the first entry; there must be one."""
        return self._blocks[0].entries[0]

    def leading(self, count: int) -> list[Entry]:
        """Return up to `count` of the first entries; fewer if the first block is smaller."""
        return self._blocks[0].entries[:count] if self._blocks else []

    def add(self, entry: Entry) -> None:
        """Insert an entry."""
        self._size += 1
        if not self._blocks:
            self._blocks.append(_Block([entry]))
            self._lasts.append(entry)
            return
        at = min(bisect_left(self._lasts, entry), len(self._lasts) - 1)
        block = self._blocks[at]
        block.add(entry)
        self._lasts[at] = block.entries[-1]
        if len(block.entries) > 2 * BLOCK:
            self._split(at)

    def remove(self, entry: Entry) -> None:
        """Remove an entry; it must be there."""
        self._size -= 1
        at = bisect_left(self._lasts, entry)
        block = self._blocks[at]
        if len(block.entries) == 1:
            del self._blocks[at], self._lasts[at]
            return
        block.remove(entry)
        self._lasts[at] = block.entries[-1]
        if len(block.entries) < BLOCK // 4 and len(self._blocks) > 1:
            self._merge(max(0, at - 1))

    def first_rank_after(self, rank: float) -> float:
        """Return the least rank above `rank`; infinite if there is none."""
        at = bisect_right(self._lasts, rank, key=_rank)
        if at == len(self._blocks):
            return math.inf
        entries = self._blocks[at].entries
        return entries[bisect_right(entries, rank, key=_rank)][0]

    def up_to(self, rank: float) -> int:
        """Return how many entries have at most this rank."""
        at = bisect_right(self._lasts, rank, key=_rank)
        count = sum(len(block.entries) for block in self._blocks[:at])
        if at < len(self._blocks):
            count += bisect_right(self._blocks[at].entries, rank, key=_rank)
        return count

    def acceptable(self, now: float, setup_s: float, per_query_s: float) -> Iterator[Entry]:
        """Yield the entries whose jobs meet their deadline at this cost.

        Blocks in which none can are skipped by their latest deadline and least number of queries.
        """
        ready_at = now + setup_s
        skip = VECTORIZED_FROM
        for block in self._blocks:
            for entry in block.entries[:skip]:
                job = entry[2]
                if ready_at + job.pending.total * per_query_s <= job.job.deadline:
                    yield entry
            seen, skip = min(skip, len(block.entries)), max(0, skip - len(block.entries))
            if seen == len(block.entries):
                continue
            table = block.table()
            if ready_at + table.fewest_queries * per_query_s > table.latest_deadline:
                continue
            meets = ready_at + table.queries[seen:] * per_query_s <= table.deadlines[seen:]
            for place in np.flatnonzero(meets).tolist():
                yield block.entries[seen + place]

    def _split(self, at: int) -> None:
        entries = self._blocks[at].entries
        halves = [_Block(entries[:BLOCK]), _Block(entries[BLOCK:])]
        self._blocks[at : at + 1] = halves
        self._lasts[at : at + 1] = [half.entries[-1] for half in halves]

    def _merge(self, at: int) -> None:
        merged = self._blocks[at].entries + self._blocks[at + 1].entries
        self._blocks[at : at + 2] = [_Block(merged)]
        self._lasts[at : at + 2] = [merged[-1]]
        if len(merged) > 2 * BLOCK:
            self._split(at)


class Lane:
    """Waiting jobs, or requests, of one engine, tenant and priority."""

    __slots__ = ("engine", "for_requests", "in_time", "level", "overdue")

    def __init__(self, engine: EngineName, level: Level, *, for_requests: bool) -> None:
        self.engine = engine
        self.for_requests = for_requests
        self.level = level
        self.in_time = Entries()
        self.overdue = Entries()


def merge(heads: Iterable[Head], entries_of: Opener) -> Iterator[JobRecord]:
    """Merge sorted parts of lanes; each is opened once the merge has reached its first entry."""
    opened: list[tuple[float, int, JobRecord, Iterator[Entry]]] = []
    for rank, sequence, lane, part in heads:
        while opened and opened[0][:2] < (rank, sequence):
            yield opened[0][2]
            _advance(opened)
        entries = iter(entries_of(lane, part))
        if (entry := next(entries, None)) is not None:
            heapq.heappush(opened, (*entry, entries))
    while len(opened) > 1:
        yield opened[0][2]
        _advance(opened)
    for _, _, job, entries in opened:  # the last one, or the only one: most queues have one lane
        yield job
        for entry in entries:
            yield entry[2]


def _advance(opened: list[tuple[float, int, JobRecord, Iterator[Entry]]]) -> None:
    entries = opened[0][3]
    entry = next(entries, None)
    if entry is None:
        heapq.heappop(opened)
    else:
        heapq.heapreplace(opened, (*entry, entries))
