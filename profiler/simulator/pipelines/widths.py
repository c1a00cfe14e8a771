"""Predicted times of a query by its width, the number of execution places of its pipeline.

Places are alike and share their memory: neither a hop nor a cut costs anything. A pipeline is cut
where its slowest stage is shortest. The heads were measured with ONNX Runtime on one thread.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Sequence

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
