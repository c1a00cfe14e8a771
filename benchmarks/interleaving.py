"""Measuring in turns, so that what disturbs the machine disturbs everybody alike."""

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
Unit: TypeAlias = Literal["median_ms", "per_second"]
"""Which half of a figure is meant."""
Cell: TypeAlias = tuple[str, str]
"""Row and column of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One cell of a table.

    Attributes:
        row: who is measured.
        column: at what.
        measure: measures for that many seconds.
    """

    row: str
    column: str
    measure: Callable[[float], Awaitable[Figure]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of every round, by row and column.

    What compares cells is computed within each round, from figures that are seconds apart; the
    median over the rounds is taken last.
    """

    rounds: dict[Cell, list[Figure]]

    def figure(self, cell: Cell) -> Figure | None:
        """Medians over the rounds; None if that was not measured."""
        figures = self.rounds.get(cell)
        if not figures:
            return None
        return Figure(
            statistics.median(figure.median_ms for figure in figures),
            statistics.median(figure.per_second for figure in figures),
        )

    def combined(self, unit: Unit, compute: Callable[..., float], *cells: Cell) -> float | None:
        """Median over the rounds of what `compute` makes of these cells; None if one is missing."""
        if any(cell not in self.rounds for cell in cells):
            return None
        columns = ([getattr(figure, unit) for figure in self.rounds[cell]] for cell in cells)
        return statistics.median(compute(*values) for values in zip(*columns, strict=True))

    def ratio(self, unit: Unit, one: Cell, other: Cell) -> float | None:
        """One cell over another."""
        return self.combined(unit, operator.truediv, one, other)


async def in_turns(probes: Sequence[Probe], seconds: float, rounds: int) -> Measured:
    """Measure every probe once per round.

    Every round begins with another probe, so that none always follows the same one.
    """
    for probe in probes:
        await probe.measure(WARM_UP_S)
    seen: dict[Cell, list[Figure]] = {(p.row, p.column): [] for p in probes}
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        first = number * len(probes) // rounds
        for probe in (*probes[first:], *probes[:first]):
            seen[probe.row, probe.column].append(await probe.measure(seconds))
    return Measured(seen)
