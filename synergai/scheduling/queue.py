"""Queue of waiting jobs in the policy's order.

Slack falls at the same rate for every waiting job, so the order by latest start does not change
with time; only the set of overdue jobs does. Jobs are kept in one sorted lane per engine and
level, so that the search for a worker's next job skips engines it does not serve.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from synergai.domain import EngineName
    from synergai.scheduling.state import JobRecord, LaneKey, Level

Entry: TypeAlias = "tuple[float, int, JobRecord]"
CostBounds: TypeAlias = "Mapping[EngineName, tuple[float, float]]"
"""Least setup and least seconds per query on any available worker, by engine."""

_rank: Final = itemgetter(0)
_position: Final = itemgetter(0, 1)
_head_position: Final = itemgetter(0, 1, 2)
VECTORIZED_FROM: Final = 32
"""Lanes longer than this are filtered with numpy."""


class Lane:
    """Waiting jobs, or requests, of one engine and level, sorted by rank, then arrival."""

    __slots__ = ("_table", "engine", "entries", "for_requests", "level")

    def __init__(self, level: Level, engine: EngineName, *, for_requests: bool) -> None:
        self.level = level
        self.engine = engine
        self.for_requests = for_requests
        self.entries: list[Entry] = []
        self._table: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def add(self, record: JobRecord) -> None:
        """Insert `record` by its rank."""
        insort(self.entries, (record.rank, record.sequence, record))
        self._table = None

    def remove(self, record: JobRecord) -> None:
        """Remove `record`."""
        at = 0
        if len(self.entries) > 1:
            at = bisect_left(self.entries, (record.rank, record.sequence), key=_position)
        del self.entries[at]
        self._table = None

    def sort(self) -> None:
        """Restore the order after ranks have changed."""
        # Timsort is fast on the nearly sorted list.
        self.entries = sorted((entry[2].rank, *entry[1:]) for entry in self.entries)
        self._table = None

    def acceptable(self, start: int, now: float, setup_s: float, per_query_s: float) -> list[int]:
        """Return the positions from `start` on of jobs that meet their deadline at this cost."""
        if self._table is None:
            jobs = [entry[2] for entry in self.entries]
            self._table = (
                np.fromiter((job.job.deadline for job in jobs), np.float64, len(jobs)),
                np.fromiter((job.pending.total for job in jobs), np.float64, len(jobs)),
            )
        deadlines, queries = self._table
        meets = now + setup_s + queries[start:] * per_query_s <= deadlines[start:]
        places: list[int] = (np.flatnonzero(meets) + start).tolist()
        return places


class JobQueue:
    """Waiting jobs by level, engine and rank.

    Attributes:
        requests: how many of them are single requests.
    """

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, Lane] = {}
        self._size = 0
        self.requests = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[JobRecord]:
        for lane in self._lanes.values():
            for entry in lane.entries:
                yield entry[2]

    def add(self, record: JobRecord, *, over_share: bool = False) -> None:
        """Insert a job by its priority, share and rank.

        Args:
            record: the job; it must not be queued.
            over_share: its tenant is over its share; it yields to other jobs of its priority.
        """
        level = (-record.job.priority, over_share)
        for_requests = record.is_request
        key = (level, record.job.engine, for_requests)
        lane = self._lanes.get(key)
        if lane is None:
            lane = Lane(level, record.job.engine, for_requests=for_requests)
            self._lanes[key] = lane
        lane.add(record)
        record.lane = key
        self._size += 1
        self.requests += for_requests

    def remove(self, record: JobRecord) -> None:
        """Remove a job; its rank must be unchanged since it was added.

        Raises:
            ValueError: the job is not queued.
        """
        key = record.lane
        if key is None:
            raise ValueError(f"job {record.job.id} is not queued")
        lane = self._lanes[key]
        lane.remove(record)
        record.lane = None
        if not lane.entries:
            del self._lanes[key]
        self._size -= 1
        self.requests -= lane.for_requests

    def engines(self) -> set[EngineName]:
        """Return the engines of the waiting jobs."""
        return {engine for _, engine, _ in self._lanes}

    def lanes_of(self, engine: EngineName) -> list[Lane]:
        """Return the lanes of `engine`."""
        return [lane for lane in self._lanes.values() if lane.engine == engine]

    def in_order(
        self,
        engines: Collection[EngineName],
        now: float | None = None,
        bounds: CostBounds | None = None,
    ) -> Iterator[JobRecord]:
        """Yield the waiting jobs of `engines` by priority, share, rank, then arrival.

        Args:
            engines: jobs of other engines are skipped.
            now: if given, jobs whose rank (latest start) has passed come after all others.
            bounds: if given, jobs in time that would be late even at this cost are skipped.
        """
        if self._size == 1:
            # Fast path: most requests arrive at an empty queue, so nothing needs sorting.
            (lane,) = self._lanes.values()
            if lane.engine in engines:
                yield lane.entries[0][2]
            return
        lanes = [lane for lane in self._lanes.values() if lane.engine in engines]
        if now is None:
            yield from _merge((lane.level, lane.entries) for lane in lanes)
            return
        cuts = [(lane, bisect_left(lane.entries, now, key=_rank)) for lane in lanes]
        yield from _merge((lane.level, _in_time(lane, cut, now, bounds)) for lane, cut in cuts)
        yield from _merge((lane.level, _slice(lane.entries, 0, cut)) for lane, cut in cuts)

    def first_requests(self) -> list[JobRecord]:
        """Return the first waiting request of each engine and level, in the queue's order."""
        heads = [
            (lane.level, *lane.entries[0]) for lane in self._lanes.values() if lane.for_requests
        ]
        heads.sort(key=_head_position)
        return [record for _, _, _, record in heads]

    def next_rank(self, now: float) -> float:
        """Return the earliest rank after `now`; infinite if there is none."""
        earliest = math.inf
        for lane in self._lanes.values():
            at = bisect_right(lane.entries, now, key=_rank)
            if at < len(lane.entries):
                earliest = min(earliest, lane.entries[at][0])
        return earliest


def _in_time(lane: Lane, cut: int, now: float, bounds: CostBounds | None) -> Iterable[Entry]:
    entries = lane.entries
    if bounds is None or len(entries) - cut <= VECTORIZED_FROM:
        return _slice(entries, cut, len(entries))
    return (entries[at] for at in lane.acceptable(cut, now, *bounds[lane.engine]))


def _slice(entries: list[Entry], start: int, stop: int) -> Iterator[Entry]:
    """Yield a slice without copying: usually only the first few entries are read."""
    return (entries[at] for at in range(start, stop))


def _merge(parts: Iterable[tuple[Level, Iterable[Entry]]]) -> Iterator[JobRecord]:
    """Merge sorted parts by level, rank and arrival."""
    levels: dict[Level, list[Iterable[Entry]]] = {}
    for level, entries in parts:
        levels.setdefault(level, []).append(entries)
    for level in sorted(levels):
        lanes = levels[level]
        for entry in lanes[0] if len(lanes) == 1 else heapq.merge(*lanes):
            yield entry[2]
