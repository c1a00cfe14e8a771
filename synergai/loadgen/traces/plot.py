"""Plots: a run over time, and latency against rate from a search for the goodput."""

from __future__ import annotations

import statistics
from itertools import groupby
from typing import TYPE_CHECKING, Final

from synergai.loadgen.outcome import RequestOutcome
from synergai.loadgen.traces.request_log import by_second
from synergai.runtime.figures import (
    fit_scale,
    make_figure,
    plain_number,
    plain_ticks,
    save,
    use_log,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from synergai.loadgen.traces.request_log import RequestLog, Second
    from synergai.loadgen.traces.search import SearchResult

_COLOURS: Final = {
    RequestOutcome.MET: "#1b7837",
    RequestOutcome.LATE: "#e08214",
    RequestOutcome.EXPIRED: "#b2182b",
    RequestOutcome.REJECTED: "#9e9e9e",
    RequestOutcome.FAILED: "#000000",
}
_DECADE: Final = 10.0
_OFFERED: Final = "#2166ac"
_DEADLINE: Final = "#b2182b"
_PERCENTILES: Final = {50.0: "#2166ac", 99.0: "#e08214"}
"""Percentiles of latency in the plot of a search, and their colours."""


def plot_run(log: RequestLog, title: str, path: Path) -> None:
    """Write a PNG with two panels: requests per second, and the latency of each request.

    For an engine with variants, a panel between them has the share of each over time.
    """
    save(draw_run(log, title), path)


def plot_search(
    found: SearchResult, title: str, path: Path, *, deadline_s: float, attainment: float
) -> None:
    """Write a PNG with two panels: latency, and the share of requests in time, by offered rate."""
    figure = draw_search(found, title, deadline_s=deadline_s, attainment=attainment)
    save(figure, path)


def draw_run(log: RequestLog, title: str) -> Figure:
    """Draw the figure of `plot_run`."""
    seconds = by_second(log)
    variants = dict.fromkeys(name for second in seconds for name in second.variants)
    if variants:
        figure = make_figure(9.0, 8.0)
        above, middle, below = figure.subplots(3, 1, sharex=True)
        _variants(middle, seconds, sorted(variants))
    else:
        figure = make_figure(9.0, 6.0)
        above, below = figure.subplots(2, 1, sharex=True)
    _rates(above, seconds)
    _latencies(below, log)
    above.set_title(title)
    return figure


def draw_search(found: SearchResult, title: str, *, deadline_s: float, attainment: float) -> Figure:
    """Draw the figure of `plot_search`; rates with several trials are joined at their median."""
    figure = make_figure(9.0, 6.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for percentile, colour in _PERCENTILES.items():
        points = [
            (trial.rate, trial.latency_s[percentile] * 1e3)
            for trial in found.trials
            if percentile in trial.latency_s
        ]
        _joined(above, points, colour, f"p{percentile:g} of the completed requests")
    above.axhline(
        deadline_s * 1e3,
        color=_DEADLINE,
        linestyle="--",
        label=f"deadline, {plain_number(deadline_s * 1e3)} ms",
    )
    use_log(above, "y")
    above.set_ylabel("latency (ms)")
    shares = [(trial.rate, trial.attainment * 100) for trial in found.trials]
    _joined(below, shares, _COLOURS[RequestOutcome.MET], "in time")
    below.axhline(
        attainment * 100,
        color=_DEADLINE,
        linestyle="--",
        label=f"goal, {plain_number(attainment * 100)} %",
    )
    unusable = [
        (trial.rate, trial.attainment * 100) for trial in found.trials if not trial.is_valid
    ]
    if unusable:
        rates, values = zip(*unusable, strict=True)
        below.plot(rates, values, "x", color="black", label="sent late: not valid")
    below.set_ylabel("requests in time (%)")
    below.set_ylim(-3.0, 103.0)
    plain_ticks(below, "y")
    below.set_xlabel("offered rate (requests/s)")
    rates_tried = [trial.rate for trial in found.trials]
    if max(rates_tried, default=0) >= _DECADE * min(rates_tried, default=1):
        use_log(below, "x")
    else:
        plain_ticks(below, "x")
    for axes in (above, below):
        if found.rate:
            axes.axvline(
                found.rate,
                color="black",
                linestyle=":",
                label=f"goodput, {plain_number(found.rate)} requests/s",
            )
        axes.grid(alpha=0.3)
    above.legend(loc="upper left")
    below.legend(loc="lower left")
    above.set_title(title)
    return figure


def _joined(axes: Axes, points: Sequence[tuple[float, float]], colour: str, label: str) -> None:
    """Draw the points, and a line through the median at each rate."""
    ordered = sorted(points)
    medians = [
        (rate, statistics.median(value for _, value in same))
        for rate, same in groupby(ordered, key=lambda point: point[0])
    ]
    axes.plot(*_columns(medians), "-", color=colour, label=label)
    axes.plot(*_columns(ordered), "o", color=colour, markersize=4, alpha=0.6)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _rates(axes: Axes, by_second: list[Second]) -> None:
    edges = [*(second.at for second in by_second), len(by_second)]
    axes.stairs([second.offered for second in by_second], edges, label="offered", color=_OFFERED)
    met = [second.met for second in by_second]
    axes.stairs(
        met, edges, label="met deadline", color=_COLOURS[RequestOutcome.MET], fill=True, alpha=0.5
    )
    axes.set_ylabel("requests/s")
    fit_scale(axes, [max((second.offered for second in by_second), default=0), max(met, default=0)])
    axes.grid(alpha=0.3)
    axes.legend()


def _variants(axes: Axes, by_second: list[Second], names: Sequence[str]) -> None:
    """Draw the answers of each variant on top of each other."""
    edges = [*(second.at for second in by_second), len(by_second)]
    below = [0] * len(by_second)
    for name in names:
        counts = [second.variants.get(name, 0) for second in by_second]
        above = [sum(pair) for pair in zip(below, counts, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, label=name)
        below = above
    axes.set_ylabel("answers/s by variant")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")


def _latencies(axes: Axes, log: RequestLog) -> None:
    for outcome, colour in _COLOURS.items():
        rows = [row for row, each in enumerate(log.outcomes) if each is outcome]
        if rows:
            axes.plot(
                [log.due[row] for row in rows],
                [log.latencies[row] * 1e3 for row in rows],
                ".",
                color=colour,
                markersize=2,
                label=outcome.value,
            )
    use_log(axes, "y")
    plain_ticks(axes, "x")
    axes.set_xlabel("due time (s)")
    axes.set_ylabel("latency (ms)")
    axes.grid(alpha=0.3)
    axes.legend(markerscale=5)
