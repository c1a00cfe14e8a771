"""Queue of waiting jobs in the policy's order.

Slack falls at the same rate for every waiting job, so the order by latest start does not change
with time; only the set of overdue jobs does. Jobs are kept in one sorted lane per engine, tenant
and priority, each in two parts: in time and overdue. The lanes of a level are sorted by their first
entries, so that a merge opens only the lanes that it reads from: the cost of an event grows with
the logarithm of the queue's length, whether jobs wait for one engine or for many.

The only job of a queue is kept aside, without a lane: most requests arrive at an empty queue and
leave it within the same event.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from synergai.core.scheduling.lane import VECTORIZED_FROM, Entries, Entry, Head, Lane, merge

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Set

    from synergai.core.scheduling.state.jobs import JobRecord, Level
    from synergai.domain import EngineName

MAX_SEARCHED: Final = 8
"""Lanes with the same first rank that are searched for the next one."""

_key: Final = itemgetter(0)

LaneKey: TypeAlias = "tuple[int, str, EngineName, bool]"
"""Priority, tenant, engine, and whether it is a lane of requests."""


class CostBounds(Protocol):
    """Least cost of an engine's queries on the workers to be assigned."""

    def of(self, engine: EngineName, /) -> tuple[float, float] | None:
        """Return the least setup and least seconds per query; None if none can run it."""


class _Level:
    """Lanes of one priority and share, each part sorted by its first entry."""

    def __init__(self) -> None:
        self.in_time: tuple[list[Head], list[Head]] = ([], [])  # by Lane.for_requests
        self.overdue: tuple[list[Head], list[Head]] = ([], [])

    def heads(self, lane: Lane, part: Entries) -> list[Head]:
        """Return where a part of a lane is sorted in."""
        return (self.in_time if part is lane.in_time else self.overdue)[lane.for_requests]


class _EngineQueue:
    """The lanes of an engine, and its jobs with deadlines: those ranked longest ago first."""

    def __init__(self) -> None:
        self.lanes: dict[LaneKey, Lane] = {}
        self.jobs: OrderedDict[int, JobRecord] = OrderedDict()


class _Aside:
    """The only job of a queue, if it has just one, and the level of its lane, once it needs one."""

    def __init__(self) -> None:
        self.record: JobRecord | None = None
        self.level: Level = (0, False)


class JobQueue:
    """Waiting jobs by level, engine and rank; `newest` is the latest sequence ever queued."""

    def __init__(self) -> None:
        self._aside = _Aside()
        self._lanes: dict[LaneKey, Lane] = {}
        self._levels: dict[Level, _Level] = {}
        self._by_engine: dict[EngineName, _EngineQueue] = {}
        self._by_tenant: dict[str, dict[LaneKey, Lane]] = {}
        self._past = -math.inf
        self.size = 0
        self.requests = 0
        self.newest = -1

    def __len__(self) -> int:
        return self.size

    # --- changes ------------------------------------------------------------------------

    def add(self, record: JobRecord, *, over_share: bool = False) -> None:
        """Insert a job by its priority, share and rank."""
        self.size += 1
        self.requests += record.is_request
        if record.sequence > self.newest:
            self.newest = record.sequence
        aside = self._aside
        if self.size == 1:
            aside.record = record
            aside.level = (-record.job.priority, over_share)
            record.lane = aside
            return
        if (first := aside.record) is not None:
            aside.record = None
            self._file(first, over_share=aside.level[1])
        self._file(record, over_share=over_share)

    def remove(self, record: JobRecord) -> None:
        """Remove a job."""
        if record.lane is None:
            raise ValueError(f"job {record.job.id} is not queued")
        record.lane = None
        self.size -= 1
        self.requests -= record.is_request
        if record is self._aside.record:
            self._aside.record = None
            return
        key = _lane_key(record)
        lane = self._lanes[key]
        self._take(record, lane)
        self._by_engine[lane.engine].jobs.pop(record.sequence, None)
        if not lane.in_time and not lane.overdue:
            self._remove_lane(key)

    def reorder(self, record: JobRecord) -> None:
        """Move a queued job to where its rank belongs, if that has changed."""
        if record.lane is None or record is self._aside.record:
            return
        if record.queued_rank != record.rank:
            lane = self._lanes[_lane_key(record)]
            self._take(record, lane)
            self._insert(record, lane)

    def ranked_longest_ago(self, engine: EngineName, count: int) -> list[JobRecord]:
        """Return up to `count` jobs of `engine` with deadlines, and count them as ranked now."""
        if (only := self._aside.record) is not None:
            return [only] if count and self._has_deadline(only, engine) else []
        queue = self._by_engine.get(engine)
        if queue is None:
            return []
        found = [queue.jobs.popitem(last=False) for _ in range(min(count, len(queue.jobs)))]
        queue.jobs.update(found)
        return [record for _, record in found]

    def set_over_share(self, tenant: str, *, over_share: bool) -> None:
        """Move a tenant's jobs behind the others of their priorities, or back among them."""
        if (only := self._aside.record) is not None and only.job.tenant == tenant:
            self._aside.level = (-only.job.priority, over_share)
        for (priority, *_), lane in self._by_tenant.get(tenant, {}).items():
            firsts = [(part, part.first()) for part in (lane.in_time, lane.overdue) if part]
            for part, first in firsts:
                self._unindex(lane, part, first)
            lane.level = (-priority, over_share)
            for part, first in firsts:
                self._index(lane, part, first)

    # --- queries ------------------------------------------------------------------------

    def engines(self) -> Set[EngineName]:
        """Return the engines of the waiting jobs."""
        if (only := self._aside.record) is not None:
            return {only.job.engine}
        return self._by_engine.keys()

    def with_deadlines(self, engine: EngineName) -> int:
        """Return how many jobs of `engine` with deadlines wait."""
        if (only := self._aside.record) is not None:
            return int(self._has_deadline(only, engine))
        queue = self._by_engine.get(engine)
        return 0 if queue is None else len(queue.jobs)

    def in_order(
        self,
        engines: Collection[EngineName] | None = None,
        now: float | None = None,
        bounds: CostBounds | None = None,
    ) -> Iterator[JobRecord]:
        """Return the waiting jobs by priority, share, rank, then arrival.

        The queue must not change during the iteration.

        Args:
            engines: jobs of other engines are skipped; None for all.
            now: if given, jobs whose rank (latest start) has passed come after all others; must
                not decrease from call to call.
            bounds: if given, jobs of engines without bounds are skipped, and so are those of long
                lanes that are in time but would be late even at this cost.
        """
        if (only := self._aside.record) is not None:
            return iter((only,) if engines is None or only.job.engine in engines else ())
        return self._merged(engines, now, bounds)

    def _merged(
        self, engines: Collection[EngineName] | None, now: float | None, bounds: CostBounds | None
    ) -> Iterator[JobRecord]:
        levels = sorted(self._levels)
        if now is None:
            for level in levels:
                yield from merge(self._heads(level, engines, in_time=True, overdue=True), _whole)
            return
        self._pass(now)
        in_time = _whole if bounds is None else partial(_acceptable, now, bounds)
        overdue = _whole if bounds is None else partial(_runnable, bounds)
        for level in levels:
            yield from merge(self._heads(level, engines, in_time=True), in_time)
        for level in levels:
            yield from merge(self._heads(level, engines, overdue=True), overdue)

    def first_requests(self, now: float) -> Iterator[JobRecord]:
        """Return a waiting request of each engine and level, in the queue's order.

        That is the first one that can be in time, if one of the first ones of the lanes can. The
        queue must not change until then.
        """
        if (only := self._aside.record) is not None:
            return iter((only,) if only.is_request else ())
        return self._first_requests(now)

    def _first_requests(self, now: float) -> Iterator[JobRecord]:
        self._pass(now)
        for _, level in sorted(self._levels.items(), key=_key):
            late: dict[EngineName, JobRecord] = {}
            seen: set[EngineName] = set()
            for _, _, lane, part in (*level.overdue[True], *level.in_time[True]):
                if lane.engine in seen:
                    continue
                first = part.first()[2]
                if first.latest_start < now:
                    late.setdefault(lane.engine, first)
                else:
                    seen.add(lane.engine)
                    yield first
            yield from (job for engine, job in late.items() if engine not in seen)

    def requests_ahead(
        self, record: JobRecord, engines: Collection[EngineName]
    ) -> Iterator[tuple[EngineName, int]]:
        """Yield how many requests of some engines wait ahead of a request that is not queued.

        Requests whose rank has passed are ahead of those ranked by arrival, and behind the others.
        """
        level = -record.job.priority
        if (only := self._aside.record) is not None:
            ahead = (self._aside.level[0], only.rank) <= (level, record.rank)
            if only.is_request and only.job.engine in engines and ahead:
                yield only.job.engine, 1
            return
        by_arrival = record.rank <= record.job.arrival
        for lane in self._lanes.values():
            if lane.for_requests and lane.engine in engines and lane.level[0] <= level:
                rank = record.rank if lane.level[0] == level else math.inf
                yield lane.engine, lane.in_time.up_to(rank) + by_arrival * len(lane.overdue)

    def latest_starts(self, engines: Collection[EngineName], count: int, now: float) -> list[float]:
        """Return when about the `count` most urgent jobs must start that are not overdue."""
        if (only := self._aside.record) is not None:
            return [only.latest_start] if only.job.engine in engines else []
        found = [
            latest_start
            for engine, queue in self._by_engine.items()
            if engine in engines
            for lane in queue.lanes.values()
            for part in (lane.in_time, lane.overdue)  # by the rank, which may be another instant
            for entry in part.leading(count)
            if (latest_start := entry[2].latest_start) >= now
        ]
        found.sort()
        return found[:count]

    def next_rank(self, now: float) -> float:
        """Return the earliest rank after `now`; infinite if there is none.

        Return `now` if many lanes begin with that very rank: what follows in them is not searched.
        """
        if (only := self._aside.record) is not None:
            return only.rank if only.rank > now else math.inf
        self._pass(now)
        earliest = math.inf
        for level in self._levels.values():
            for heads in level.in_time:
                for rank, _, _, part in heads[:MAX_SEARCHED]:
                    earliest = min(earliest, part.first_rank_after(now))
                    if rank > now:
                        break
                else:
                    if len(heads) > MAX_SEARCHED:
                        return now
        return earliest

    # --- internals ----------------------------------------------------------------------

    @staticmethod
    def _has_deadline(record: JobRecord, engine: EngineName) -> bool:
        return record.job.engine == engine and math.isfinite(record.job.deadline)

    def _file(self, record: JobRecord, *, over_share: bool) -> None:
        job = record.job
        key = _lane_key(record)
        lane = self._lanes.get(key) or self._add_lane(key, over_share=over_share)
        record.lane = lane
        self._insert(record, lane)
        if math.isfinite(job.deadline):
            self._by_engine[job.engine].jobs[record.sequence] = record

    def _add_lane(self, key: LaneKey, *, over_share: bool) -> Lane:
        priority, tenant, engine, for_requests = key
        lane = Lane(engine, (-priority, over_share), for_requests=for_requests)
        self._lanes[key] = lane
        self._by_engine.setdefault(engine, _EngineQueue()).lanes[key] = lane
        self._by_tenant.setdefault(tenant, {})[key] = lane
        return lane

    def _remove_lane(self, key: LaneKey) -> None:
        _, tenant, engine, _ = key
        queue, lanes = self._by_engine[engine], self._by_tenant[tenant]
        del self._lanes[key], queue.lanes[key], lanes[key]
        if not queue.lanes:
            del self._by_engine[engine]
        if not lanes:
            del self._by_tenant[tenant]

    def _insert(self, record: JobRecord, lane: Lane) -> None:
        record.queued_rank = record.rank
        entry = (record.rank, record.sequence, record)
        part = lane.overdue if record.rank < self._past else lane.in_time
        first = part.first() if part else None
        part.add(entry)
        if first is None or entry < first:
            if first is not None:
                self._unindex(lane, part, first)
            self._index(lane, part, entry)

    def _take(self, record: JobRecord, lane: Lane) -> None:
        part = lane.overdue if record.queued_rank < self._past else lane.in_time
        first = part.first()
        part.remove((record.queued_rank, record.sequence, record))
        if first[2] is record:
            self._unindex(lane, part, first)
            if part:
                self._index(lane, part, part.first())

    def _index(self, lane: Lane, part: Entries, first: Entry) -> None:
        """Sort a part of a lane into its level by its first entry."""
        heads = self._levels.setdefault(lane.level, _Level()).heads(lane, part)
        insort(heads, (first[0], first[1], lane, part))

    def _unindex(self, lane: Lane, part: Entries, first: Entry) -> None:
        """Remove a part of a lane from its level, where it is under its former first entry."""
        level = self._levels[lane.level]
        heads = level.heads(lane, part)
        del heads[bisect_left(heads, first[:2])]
        if not (any(level.in_time) or any(level.overdue)):
            del self._levels[lane.level]

    def _pass(self, now: float) -> None:
        """Move the jobs whose rank has passed from in time to overdue."""
        if now <= self._past:
            return
        self._past = now
        for level in list(self._levels.values()):
            for heads in level.in_time:
                while heads and heads[0][0] < now:
                    self._pass_lane(heads[0][2], now)

    def _pass_lane(self, lane: Lane, now: float) -> None:
        in_time, overdue = lane.in_time, lane.overdue
        first = overdue.first() if overdue else None
        self._unindex(lane, in_time, in_time.first())
        while in_time and (entry := in_time.first())[0] < now:
            in_time.remove(entry)
            overdue.add(entry)
        if in_time:
            self._index(lane, in_time, in_time.first())
        if overdue.first() is not first:
            if first is not None:
                self._unindex(lane, overdue, first)
            self._index(lane, overdue, overdue.first())

    def _heads(
        self,
        key: Level,
        engines: Collection[EngineName] | None,
        *,
        in_time: bool = False,
        overdue: bool = False,
    ) -> Iterable[Head]:
        """Return the parts of a level's lanes by their first entries, for some engines only."""
        level = self._levels[key]
        lists = [
            *(heads for heads in level.in_time if in_time and heads),
            *(heads for heads in level.overdue if overdue and heads),
        ]
        if engines is None:
            return lists[0] if len(lists) == 1 else heapq.merge(*lists)
        if len(engines) * 4 >= sum(map(len, lists)):
            return (head for head in heapq.merge(*lists) if head[2].engine in engines)
        return sorted(
            (first[0], first[1], lane, part)
            for engine in engines
            if engine in self._by_engine
            for lane in self._by_engine[engine].lanes.values()
            if lane.level == key
            for part in (*([lane.in_time] * in_time), *([lane.overdue] * overdue))
            if part and (first := part.first())
        )


def _lane_key(record: JobRecord) -> LaneKey:
    job = record.job
    return job.priority, job.tenant, job.engine, record.is_request


def _whole(_lane: Lane, part: Entries) -> Iterable[Entry]:
    return part


def _acceptable(now: float, bounds: CostBounds, lane: Lane, part: Entries) -> Iterable[Entry]:
    cost = bounds.of(lane.engine)
    if cost is None:
        return ()
    return part if len(part) <= VECTORIZED_FROM else part.acceptable(now, *cost)


def _runnable(bounds: CostBounds, lane: Lane, part: Entries) -> Iterable[Entry]:
    return () if bounds.of(lane.engine) is None else part
