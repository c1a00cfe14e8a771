"""Interleaved measurement, so that disturbances of the machine affect all servers alike."""

from __future__ import annotations

import operator
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from benchmarks.client import Figure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

WARM_UP_S = 0.3
Metric: TypeAlias = Literal["median_ms", "per_second"]
"""Field of a `Figure`."""
Cell: TypeAlias = tuple[str, str]
"""Row and column of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One cell of a table.

    Attributes:
        row: the measured server.
        column: the call pattern.
        measure: measures for a number of seconds.
    """

    row: str
    column: str
    measure: Callable[[float], Awaitable[Figure]]


@dataclass(frozen=True, slots=True)
class Measurements:
    """The figures of all rounds, by row and column.

    Comparisons are computed within each round, from figures taken seconds apart; their median
    over the rounds is taken last.
    """

    rounds: dict[Cell, list[Figure]]

    def figure(self, cell: Cell) -> Figure | None:
        """Return the medians over the rounds; None if the cell was not measured."""
        figures = self.rounds.get(cell)
        if not figures:
            return None
        return Figure(
            statistics.median(figure.median_ms for figure in figures),
            statistics.median(figure.per_second for figure in figures),
        )

    def combine(self, metric: Metric, compute: Callable[..., float], *cells: Cell) -> float | None:
        """Return the median over the rounds of `compute(*cells)`; None if a cell is missing."""
        if any(cell not in self.rounds for cell in cells):
            return None
        columns = ([getattr(figure, metric) for figure in self.rounds[cell]] for cell in cells)
        return statistics.median(compute(*values) for values in zip(*columns, strict=True))

    def ratio(self, metric: Metric, one: Cell, other: Cell) -> float | None:
        """Return the median over the rounds of one cell divided by another."""
        return self.combine(metric, operator.truediv, one, other)


async def measure_interleaved(probes: Sequence[Probe], seconds: float, rounds: int) -> Measurements:
    """Run every probe once per round.

    Each round starts with a different probe, so that no probe always follows the same one.
    """
    for probe in probes:
        await probe.measure(WARM_UP_S)
    figures: dict[Cell, list[Figure]] = {(p.row, p.column): [] for p in probes}
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        first = number * len(probes) // rounds
        for probe in (*probes[first:], *probes[:first]):
            figures[probe.row, probe.column].append(await probe.measure(seconds))
    return Measurements(figures)
