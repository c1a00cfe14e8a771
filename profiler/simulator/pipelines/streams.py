"""Streams of queries with deadlines and priorities, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.simulator.pipelines.widths import PLACES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiler.simulator.pipelines.widths import Widths
    from synergai.domain import EngineName

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
