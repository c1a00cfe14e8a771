"""Execution places in virtual time, and the streams of queries that pipelines over them answer."""

from __future__ import annotations

import csv
import heapq
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Scheduler: TypeAlias = Callable[["Places"], None]
    """Starts waiting queries, and resizes pipelines; called after every arrival and release."""


# Places are alike and share their memory: neither a hop nor a cut costs anything. A pipeline is cut
# where its slowest stage is shortest. The heads were measured with ONNX Runtime on one thread.

PLACES: Final = 8
MEASURED_HEADS: Final = Path(__file__).parent.parent / "data" / "measured_heads.csv"


@dataclass(frozen=True, slots=True)
class Widths:
    """Table of an engine, which the schedulers take as its profile.

    Attributes:
        whole_s: time of one sample through the whole engine, on any number of places.
        slowest_s: time of the slowest stage, by width from 1.
    """

    whole_s: float
    slowest_s: tuple[float, ...]

    def seconds(self, batch: int, width: int) -> float:
        """Return the time of a batch: its first sample fills the pipeline, the others follow."""
        return self.whole_s + (batch - 1) * self.slowest_s[width - 1]

    def fastest(self, batch: int) -> int:
        """Return the width at which a batch is fastest, the least of several."""
        return min(range(1, len(self.slowest_s) + 1), key=lambda w: self.seconds(batch, w))

    def least(self, batch: int, budget_s: float) -> int | None:
        """Return the least width at which a batch takes at most `budget_s`; None if none does."""
        widths = range(1, len(self.slowest_s) + 1)
        return next((w for w in widths if self.seconds(batch, w) <= budget_s), None)


def measured_widths() -> dict[EngineName, Widths]:
    """Return the tables of the engines whose heads were measured."""
    heads: dict[EngineName, list[float]] = defaultdict(list)
    with MEASURED_HEADS.open() as file:
        for row in csv.DictReader(file):
            heads[EngineName(row["engine"])].append(float(row["head_ms"]) / 1000)
    return {engine: widths_of(of_engine) for engine, of_engine in heads.items()}


def widths_of(heads: Sequence[float]) -> Widths:
    """Return the table of an engine.

    Args:
        heads: time until each cut, ascending; the last is that of the whole engine.
    """
    segments = [after - before for before, after in pairwise((0.0, *heads))]
    slowest = [heads[-1]]
    # best[k]: the slowest of the stages of the first k segments, for the number of stages so far.
    best = [0.0, *heads]
    for _ in range(1, PLACES):
        best = [
            min((max(best[cut], sum(segments[cut:end])) for cut in range(end)), default=0.0)
            for end in range(len(best))
        ]
        slowest.append(best[-1])
    return Widths(heads[-1], tuple(slowest))


SLOS: Final = {"strict": 1.5, "moderate": 3.0, "relaxed": 6.0}
"""Budget of a query, in times of what it takes alone at its fastest width."""
_BATCHES: Final = {"small": (1, 2, 4, 8), "mixed": (1, 4, 16, 64)}
_LOADS: Final = {"light": 0.6, "heavy": 0.9, "overload": 1.2}
"""Mean arrivals relative to the capacity of all places."""
STREAMS: Final = tuple(f"{batches}-{load}" for batches in _BATCHES for load in _LOADS)
_QUERIES: Final = 120
_PHASE: Final = 20
"""Queries after which the arrival rate changes between its two values."""
_SWING: Final = 1.6
_HIGH_PRIORITY: Final = 0.25
"""Share of queries of high priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuery:
    """A query with a batch of samples. Times are seconds."""

    number: int
    engine: EngineName
    batch: int
    high: bool
    arrival: float
    deadline: float


def draw_stream(
    stream: str, slo: str, seed: int, tables: Mapping[EngineName, Widths]
) -> list[BatchQuery]:
    """Draw a stream by its name; the same seed gives the same queries under every SLO."""
    batches, load = stream.split("-")
    sizes = _BATCHES[batches]
    random = np.random.default_rng([seed, STREAMS.index(stream)])
    engines = sorted(tables)
    # All places serve so many queries per second, each running whole engines.
    mean_s = sum(table.whole_s for table in tables.values()) / len(tables)
    rate = _LOADS[load] * (PLACES / (mean_s * (sum(sizes) / len(sizes))))
    queries, now = [], 0.0
    for number in range(_QUERIES):
        busy = number // _PHASE % 2 == 0
        now += float(random.exponential(1.0)) / (rate * (_SWING if busy else 1 / _SWING))
        engine = engines[int(random.integers(len(engines)))]
        batch = sizes[int(random.integers(len(sizes)))]
        alone_s = tables[engine].seconds(batch, tables[engine].fastest(batch))
        queries.append(
            BatchQuery(
                number=number,
                engine=engine,
                batch=batch,
                high=bool(random.random() < _HIGH_PRIORITY),
                arrival=now,
                deadline=now + SLOS[slo] * alone_s,
            )
        )
    return queries


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
        for query in queries:
            self._call_at(query.arrival, partial(self.waiting.append, query))
        while self._timers:
            at, _, callback = heapq.heappop(self._timers)
            self.full_s += (at - self.now) * (self.free == 0)
            self.now = at
            callback()
            schedule(self)

    def start(self, query: BatchQuery, width: int) -> None:
        self.waiting.remove(query)
        pipeline = Pipeline(query, self.tables[query.engine], width, self.now)
        self.free -= width
        self.running.append(pipeline)
        self._end_later(pipeline)

    def widen(self, pipeline: Pipeline) -> None:
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
