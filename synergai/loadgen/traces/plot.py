"""Plot of a run over time: offered load, goodput and latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from synergai.loadgen.outcome import Outcome
from synergai.loadgen.traces.request_log import by_second

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from synergai.loadgen.traces.request_log import RequestLog, Second

_COLOURS: Final = {
    Outcome.MET: "#1b7837",
    Outcome.LATE: "#e08214",
    Outcome.EXPIRED: "#b2182b",
    Outcome.REJECTED: "#9e9e9e",
    Outcome.FAILED: "#000000",
}
_DPI: Final = 120


def plot_run(log: RequestLog, title: str, path: Path) -> None:
    """Write a PNG with two panels: requests per second, and the latency of each request.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _rates(above, by_second(log))
    _latencies(below, log)
    above.set_title(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI)


def _rates(axes: Axes, by_second: list[Second]) -> None:
    edges = [*(second.at for second in by_second), len(by_second)]
    axes.stairs([second.offered for second in by_second], edges, label="offered", color="#2166ac")
    met = [second.met for second in by_second]
    axes.stairs(met, edges, label="met deadline", color=_COLOURS[Outcome.MET], fill=True, alpha=0.5)
    axes.set_ylabel("requests/s")
    axes.grid(alpha=0.3)
    axes.legend()


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
    axes.set_yscale("log")
    axes.set_xlabel("due time [s]")
    axes.set_ylabel("latency [ms]")
    axes.grid(alpha=0.3)
    axes.legend(markerscale=5)
