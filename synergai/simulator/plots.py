"""Plots in the style of the thesis's Figures 7.3 to 7.7, with the spread over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from synergai.simulator.results import Spread
from synergai.simulator.tables import METRICS, Metric, select

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from synergai.simulator.results import Result

_HIGHLIGHTED: Final = {"malleable": "#1b7837", "synergai": "#2166ac", "slo_mael": "#b2182b"}
_OTHER: Final = "#9e9e9e"
_DPI: Final = 120


def plot_experiments(
    results: Sequence[Result], policies: Sequence[str], experiments: Sequence[str], folder: Path
) -> list[Path]:
    """Plot one figure per experiment and one of all; a panel per metric, a bar per policy.

    Bars are means over seeds, error bars one standard deviation.

    Returns:
        The files written.
    """
    written = []
    for experiment in experiments:
        figure = _make_figure(10.0, 7.0)
        for place, metric in enumerate(METRICS):
            axes = figure.add_subplot(2, 2, place + 1)
            _bars(axes, results, metric, policies, experiment)
        figure.suptitle(experiment)
        written.append(save(figure, folder / f"{experiment}.png"))
    figure = _make_figure(4.0 * len(experiments), 10.0)
    panels = figure.subplots(
        len(METRICS), len(experiments), sharex=True, sharey="row", squeeze=False
    )
    for metric, row in zip(METRICS, panels, strict=True):
        for experiment, axes in zip(experiments, row, strict=True):
            _bars(axes, results, metric, policies, experiment)
            axes.label_outer()
    for experiment, axes in zip(experiments, panels[0], strict=True):
        axes.set_title(experiment)
    written.append(save(figure, folder / "comparison.png"))
    return written


def _bars(
    axes: Axes, results: Sequence[Result], metric: Metric, policies: Sequence[str], experiment: str
) -> None:
    spreads = [
        Spread.of(metric.of(result) for result in select(results, policy, experiment))
        for policy in policies
    ]
    means = [spread.mean for spread in spreads]
    down = [min(spread.mean, spread.deviation) for spread in spreads]
    axes.bar(
        list(policies),
        means,
        yerr=[down, [spread.deviation for spread in spreads]],
        color=[_HIGHLIGHTED.get(policy, _OTHER) for policy in policies],
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axes.set_ylabel(metric.title)
    axes.tick_params(axis="x", rotation=60)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _make_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, creating its directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI)
    return path
