"""The jobs that wait, in the policy's order.

Slack falls at the same rate for every waiting job, so an order by latest start never changes
by time alone; what changes is which jobs are past theirs. Jobs are kept in one sorted lane
per engine and level, so that a worker looks only at what it can run.
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
    from synergai.scheduling.state import JobRecord

Entry: TypeAlias = "tuple[float, int, JobRecord]"
Level: TypeAlias = tuple[int, bool]
"""What goes before any rank: minus the priority, then whether the tenant is over its share."""
Bounds: TypeAlias = "Mapping[EngineName, tuple[float, float]]"
"""The least setup and the least seconds per query that anybody could offer, by engine."""

_rank: Final = itemgetter(0)
_locked_download: Final = itemgetter(0, 1)
WORTH_A_SCAN: Final = 32
"""A lane longer than this is looked through by numpy."""


class Lane:
    """Waiting jobs of one engine and level, sorted by rank, then arrival."""

    __slots__ = ("_table", "engine", "entries", "level")

    def __init__(self, level: Level, engine: EngineName) -> None:
        self.level = level
        self.engine = engine
        self.entries: list[Entry] = []
        self._table: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def add(self, record: JobRecord) -> None:
        """Put `record` where its rank says."""
        insort(self.entries, (record.rank, record.sequence, record))
        self._table = None

    def remove(self, record: JobRecord) -> None:
        """Take `record` out."""
        at = 0
        if len(self.entries) > 1:
            at = bisect_left(self.entries, (record.rank, record.sequence), key=_locked_download)
        del self.entries[at]
        self._table = None

    def sort(self) -> None:
        """Put everybody where their rank now says."""
        # Nearly in order already, which Python's sort makes use of.
        self.entries = sorted((entry[2].rank, *entry[1:]) for entry in self.entries)
        self._table = None

    def acceptable(self, start: int, now: float, setup_s: float, per_query_s: float) -> list[int]:
        """Places from `start` on of jobs that would meet their deadline at this cost."""
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
    """Waiting jobs by level, engine and rank."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[Level, EngineName], Lane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[JobRecord]:
        for lane in self._lanes.values():
            for entry in lane.entries:
                yield entry[2]

    def add(self, record: JobRecord, *, behind: bool = False) -> None:
        """Put `record` where its priority and rank say.

        Args:
            record: the job; it does not wait yet.
            behind: it yields to all others of its priority, as its tenant has had its share.
        """
        level = (-record.job.priority, behind)
        key = (level, record.job.engine)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(*key)
        lane.add(record)
        record.lane = lane
        self._size += 1

    def remove(self, record: JobRecord) -> None:
        """Take `record` out; its rank must be the one it was added with.

        Raises:
            ValueError: it does not wait.
        """
        lane = record.lane
        if lane is None:
            raise ValueError(f"job {record.job.id} does not wait")
        lane.remove(record)
        record.lane = None
        if not lane.entries:
            del self._lanes[lane.level, lane.engine]
        self._size -= 1

    def engines(self) -> set[EngineName]:
        """The engines that somebody waits for."""
        return {engine for _, engine in self._lanes}

    def of_engine(self, engine: EngineName) -> list[Lane]:
        """The lanes of those who wait for `engine`."""
        return [lane for lane in self._lanes.values() if lane.engine == engine]

    def in_order(
        self,
        engines: Collection[EngineName],
        now: float | None = None,
        bounds: Bounds | None = None,
    ) -> Iterator[JobRecord]:
        """Waiting jobs of `engines`: by priority, share, then rank, then arrival.

        Args:
            engines: the others' jobs are passed over without a look.
            now: if given, jobs whose rank (latest start) is past come after all others.
            bounds: if given, jobs in time that would be late even at this cost are left out.
        """
        if self._size == 1:
            # Most requests come when nobody waits: nothing to sort, or to be sorted out.
            (lane,) = self._lanes.values()
            if lane.engine in engines:
                yield lane.entries[0][2]
            return
        lanes = [lane for lane in self._lanes.values() if lane.engine in engines]
        if now is None:
            yield from _merged((lane.level, lane.entries) for lane in lanes)
            return
        cuts = [(lane, bisect_left(lane.entries, now, key=_rank)) for lane in lanes]
        yield from _merged((lane.level, _in_time(lane, cut, now, bounds)) for lane, cut in cuts)
        yield from _merged((lane.level, _slice(lane.entries, 0, cut)) for lane, cut in cuts)

    def next_rank(self, now: float) -> float:
        """The earliest rank after `now`: when the next job's latest start passes; maybe never."""
        earliest = math.inf
        for lane in self._lanes.values():
            at = bisect_right(lane.entries, now, key=_rank)
            if at < len(lane.entries):
                earliest = min(earliest, lane.entries[at][0])
        return earliest


def _in_time(lane: Lane, cut: int, now: float, bounds: Bounds | None) -> Iterable[Entry]:
    entries = lane.entries
    if bounds is None or len(entries) - cut <= WORTH_A_SCAN:
        return _slice(entries, cut, len(entries))
    return (entries[at] for at in lane.acceptable(cut, now, *bounds[lane.engine]))


def _slice(entries: list[Entry], start: int, stop: int) -> Iterator[Entry]:
    """A slice that copies nothing: seldom are more than a few of many looked at."""
    return (entries[at] for at in range(start, stop))


def _merged(parts: Iterable[tuple[Level, Iterable[Entry]]]) -> Iterator[JobRecord]:
    """Merge sorted parts by level, rank and arrival."""
    levels: dict[Level, list[Iterable[Entry]]] = {}
    for level, entries in parts:
        levels.setdefault(level, []).append(entries)
    for level in sorted(levels):
        lanes = levels[level]
        for entry in lanes[0] if len(lanes) == 1 else heapq.merge(*lanes):
            yield entry[2]
