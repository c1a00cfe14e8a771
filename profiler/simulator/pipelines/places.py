"""Execution places in virtual time: pipelines run on some of them, and may change their width."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from profiler.simulator.pipelines.streams import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from profiler.simulator.pipelines.streams import BatchQuery, Widths
    from synergai.domain import EngineName

    Scheduler: TypeAlias = Callable[["Places"], None]
    """Starts waiting queries, and resizes pipelines; called after every arrival and release."""


@dataclass(slots=True, eq=False)
class Pipeline:
    """A running query.

    Attributes:
        left: share of its work that was left at `since`.
        next_width: its width from the next stage boundary; 0 if it does not change.
    """

    query: BatchQuery
    table: Widths
    width: int
    since: float
    left: float = 1.0
    next_width: int = 0
    changes: int = 0

    def left_at(self, now: float) -> float:
        """Return the share of its work that is left."""
        whole_s = self.table.seconds(self.query.batch, self.width)
        return max(0.0, self.left - (now - self.since) / whole_s)

    def ends(self, now: float, width: int) -> float:
        """Return when it would end if its width changed now."""
        return now + self.left_at(now) * self.table.seconds(self.query.batch, width)

    def resize(self, now: float, width: int) -> None:
        """Change its width; the share of its work that is left stays the same."""
        self.left, self.since, self.width = self.left_at(now), now, width
        self.changes += 1


@dataclass(slots=True)
class Places:
    """The execution places, the queries that wait for them, and those that ended.

    Attributes:
        ended: when each query ended, by number.
        full_s: time in which every place was taken.
    """

    tables: Mapping[EngineName, Widths]
    now: float = 0.0
    free: int = PLACES
    full_s: float = 0.0
    waiting: list[BatchQuery] = field(default_factory=list)
    running: list[Pipeline] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, queries: Sequence[BatchQuery], schedule: Scheduler) -> None:
        """Run queries until all have ended."""
        for query in queries:
            self._call_at(query.arrival, partial(self.waiting.append, query))
        while self._timers:
            at, _, callback = heapq.heappop(self._timers)
            self.full_s += (at - self.now) * (self.free == 0)
            self.now = at
            callback()
            schedule(self)

    def start(self, query: BatchQuery, width: int) -> None:
        """Start a waiting query on free places."""
        self.waiting.remove(query)
        pipeline = Pipeline(query, self.tables[query.engine], width, self.now)
        self.free -= width
        self.running.append(pipeline)
        self._end_later(pipeline)

    def widen(self, pipeline: Pipeline) -> None:
        """Give a pipeline a free place."""
        pipeline.resize(self.now, pipeline.width + 1)
        self.free -= 1
        self._end_later(pipeline)

    def shrink(self, pipeline: Pipeline, width: int) -> None:
        """Free places of a pipeline at its next stage boundary."""
        pipeline.next_width = width
        self._call_at(self.boundary(pipeline), partial(self._shrink, pipeline))

    def boundary(self, pipeline: Pipeline) -> float:
        """Return the next stage boundary of a pipeline."""
        step_s = pipeline.table.slowest_s[pipeline.width - 1]
        steps = math.floor((self.now - pipeline.since) / step_s) + 1
        return pipeline.since + steps * step_s

    def _shrink(self, pipeline: Pipeline) -> None:
        if pipeline in self.running:
            self.free += pipeline.width - pipeline.next_width
            pipeline.resize(self.now, pipeline.next_width)
            pipeline.next_width = 0
            self._end_later(pipeline)

    def _end_later(self, pipeline: Pipeline) -> None:
        end = partial(self._end, pipeline, pipeline.changes)
        self._call_at(pipeline.ends(self.now, pipeline.width), end)

    def _end(self, pipeline: Pipeline, changes: int) -> None:
        if pipeline.changes != changes:
            return  # it was resized, and ends at another time
        self.running.remove(pipeline)
        self.free += pipeline.width
        self.ended[pipeline.query.number] = self.now

    def _call_at(self, at: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (at, next(self._count), callback))
