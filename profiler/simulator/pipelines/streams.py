"""Streams of queries with deadlines and priorities, drawn from a seed."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Places are alike and share their memory: neither a hop nor a cut costs anything. A pipeline is cut
# where its slowest stage is shortest. The heads were measured with ONNX Runtime on one thread.

PLACES: Final = 8
_MEASURED: Final = Path(__file__).parent.parent / "data" / "measured_heads.csv"


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
    with _MEASURED.open() as file:
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
