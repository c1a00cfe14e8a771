"""Tables of a comparison: one row per SLO and stream, one column per scheduler."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.simulator.pipelines.streams import SLOS, STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.simulator.pipelines.comparison import StreamResult


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure by which schedulers are compared; None where it is not known."""

    title: str
    of: Callable[[StreamResult], float | None]
    digits: int


FIGURES: Final = (
    Figure("violations (%)", lambda each: 100 * each.violations / each.queries, 1),
    Figure("mean latency (ms)", lambda each: 1000 * each.mean_s, 0),
    Figure("queries per second", lambda each: each.rate, 1),
    Figure("time with all places taken (%)", lambda each: _percent(each.full), 0),
)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def schedulers_of(results: Sequence[StreamResult]) -> list[str]:
    """Return the schedulers in order."""
    return list(dict.fromkeys(each.scheduler for each in results))


def rows(results: Sequence[StreamResult], figure: Figure) -> list[list[str]]:
    """Return the means over seeds for each stream, and over all streams of each SLO."""
    schedulers = schedulers_of(results)
    table = []
    for slo in SLOS:
        of_slo = [each for each in results if each.slo == slo]
        for stream in STREAMS:
            of_stream = [each for each in of_slo if each.stream == stream]
            table.append([slo, stream, *_cells(of_stream, schedulers, figure)])
        table.append([slo, "mean", *_cells(of_slo, schedulers, figure)])
    return table


def bound_rows(results: Sequence[StreamResult]) -> list[list[str]]:
    """Return the mean lower bounds on violations by SLO; empty if they were not computed."""
    table = []
    for slo in SLOS:
        bounds = [
            100 * each.violations_at_least / each.queries
            for each in results
            if each.slo == slo and each.violations_at_least is not None
        ]
        if bounds:
            table.append([slo, f"{statistics.fmean(bounds):.1f}"])
    return table


def _cells(results: Sequence[StreamResult], schedulers: Sequence[str], figure: Figure) -> list[str]:
    cells = []
    for scheduler in schedulers:
        of_runs = [figure.of(each) for each in results if each.scheduler == scheduler]
        values = [each for each in of_runs if each is not None]
        cells.append(f"{statistics.fmean(values):.{figure.digits}f}" if values else "-")
    return cells
