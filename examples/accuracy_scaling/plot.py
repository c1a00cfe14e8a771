"""A run over time: its rate, the variants that answered, and the latency of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profiler.loadgen.outcome import RequestOutcome
from profiler.loadgen.traces.request_log import by_second
from profiler.reports.drawing import make_figure, plain_ticks, save, use_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from profiler.loadgen.traces.request_log import RequestLog, SecondCounts

_COLOURS: Final = {
    RequestOutcome.MET: "#1b7837",
    RequestOutcome.LATE: "#e08214",
    RequestOutcome.EXPIRED: "#b2182b",
    RequestOutcome.REJECTED: "#9e9e9e",
    RequestOutcome.FAILED: "#000000",
}
_OFFERED: Final = "#2166ac"


def plot_run(log: RequestLog, title: str, path: Path) -> None:
    """Write a PNG with three panels."""
    seconds = by_second(log)
    figure = make_figure(9.0, 8.0)
    above, middle, below = figure.subplots(3, 1, sharex=True)
    _rates(above, seconds)
    _variants(middle, seconds, sorted({name for second in seconds for name in second.variants}))
    _latencies(below, log)
    above.set_title(title)
    save(figure, path)


def _rates(axes: Axes, by_second: list[SecondCounts]) -> None:
    edges = [*(second.at for second in by_second), len(by_second)]
    axes.stairs([second.offered for second in by_second], edges, label="offered", color=_OFFERED)
    met = [second.met for second in by_second]
    axes.stairs(
        met, edges, label="met deadline", color=_COLOURS[RequestOutcome.MET], fill=True, alpha=0.5
    )
    axes.set_ylabel("requests/s")
    axes.grid(alpha=0.3)
    axes.legend()


def _variants(axes: Axes, by_second: list[SecondCounts], names: Sequence[str]) -> None:
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
