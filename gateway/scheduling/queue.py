"""The jobs that wait, in the policy's order.

Slack falls at the same rate for every waiting job, so an order by latest start never changes
by time alone; what changes is which jobs are past theirs. Jobs are kept in one sorted lane
per engine and priority, so that a worker looks only at what it can run.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gateway.scheduling.state import JobRecord
    from synergai.domain import EngineName

    Entry = tuple[float, int, JobRecord]
    Lane = tuple[int, EngineName]

_rank = itemgetter(0)


class JobQueue:
    """Waiting jobs by engine, priority and rank."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[Entry]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[JobRecord]:
        for lane in self._lanes.values():
            for entry in lane:
                yield entry[2]

    def add(self, record: JobRecord) -> None:
        """Put `record` where its priority and rank say."""
        key = (-record.job.priority, record.job.engine)
        insort(self._lanes.setdefault(key, []), (record.rank, record.sequence, record))
        self._size += 1

    def remove(self, record: JobRecord) -> None:
        """Take `record` out; its rank must be the one it was added with."""
        key = (-record.job.priority, record.job.engine)
        lane = self._lanes[key]
        at = bisect_left(lane, (record.rank, record.sequence), key=itemgetter(0, 1))
        del lane[at]
        if not lane:
            del self._lanes[key]
        self._size -= 1

    def engines(self) -> set[EngineName]:
        """The engines that somebody waits for."""
        return {engine for _, engine in self._lanes}

    def in_order(
        self, engines: Collection[EngineName], now: float | None = None
    ) -> Iterator[JobRecord]:
        """Waiting jobs of `engines`: by priority, then rank, then arrival.

        Args:
            engines: the others' jobs are passed over without a look.
            now: if given, jobs whose rank (latest start) is past come after all others.
        """
        lanes = [(key[0], lane) for key, lane in self._lanes.items() if key[1] in engines]
        if now is None:
            yield from _merged((priority, lane, 0, len(lane)) for priority, lane in lanes)
            return
        cuts = [(priority, lane, bisect_left(lane, now, key=_rank)) for priority, lane in lanes]
        yield from _merged((priority, lane, cut, len(lane)) for priority, lane, cut in cuts)
        yield from _merged((priority, lane, 0, cut) for priority, lane, cut in cuts)

    def next_rank(self, now: float) -> float | None:
        """The earliest rank after `now`: when the next job's latest start passes."""
        ranks = []
        for lane in self._lanes.values():
            at = bisect_right(lane, now, key=_rank)
            if at < len(lane):
                ranks.append(lane[at][0])
        return min(ranks, default=None)


def _merged(parts: Iterator[tuple[int, list[Entry], int, int]]) -> Iterator[JobRecord]:
    """Merge sorted slices ``lane[start:stop]`` by priority, rank and arrival."""
    heap = [
        (priority, lane[start][0], lane[start][1], start, stop, lane)
        for priority, lane, start, stop in parts
        if start < stop
    ]
    heapq.heapify(heap)
    while heap:
        priority, _, _, at, stop, lane = heap[0]
        yield lane[at][2]
        at += 1
        if at < stop:
            heapq.heapreplace(heap, (priority, lane[at][0], lane[at][1], at, stop, lane))
        else:
            heapq.heappop(heap)
