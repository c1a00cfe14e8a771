"""One overview of all policies and experiments, with the spread over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from synergai.runtime.figures import fit_scale, make_figure
from synergai.simulator.results import Spread
from synergai.simulator.tables import METRICS, Metric, select, title

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from synergai.simulator.results import SimulationResult

_HIGHLIGHTED: Final = {"malleable": "#1b7837", "synergai": "#2166ac", "slo_mael": "#b2182b"}
_OTHER: Final = "#9e9e9e"


def draw_comparison(
    results: Sequence[SimulationResult], policies: Sequence[str], experiments: Sequence[str]
) -> Figure:
    """Draw all policies in all experiments, as an overview.

    There is a column per experiment, a row per metric and a bar per policy. Bars are means over
    seeds, error bars one standard deviation. A metric in which one policy dwarfs another has a
    logarithmic axis. `profiler.reports` has the distributions.
    """
    figure = make_figure(4.0 * len(experiments), 2.5 * len(METRICS))
    panels = figure.subplots(
        len(METRICS), len(experiments), sharex=True, sharey="row", squeeze=False
    )
    for metric, row in zip(METRICS, panels, strict=True):
        means = []
        for experiment, axes in zip(experiments, row, strict=True):
            means += _bars(axes, results, metric, policies, experiment)
            axes.label_outer()
        for axes in row:
            fit_scale(axes, means)
    for experiment, axes in zip(experiments, panels[0], strict=True):
        axes.set_title(experiment)
    _explain(figure, policies)
    return figure


def _bars(
    axes: Axes,
    results: Sequence[SimulationResult],
    metric: Metric,
    policies: Sequence[str],
    experiment: str,
) -> list[float]:
    """Draw a bar per policy; return the means."""
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
    axes.set_ylabel(title(metric, results))
    axes.tick_params(axis="x", rotation=60)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return means


def _explain(figure: Figure, policies: Sequence[str]) -> None:
    """Explain the colours and the error bars below the panels."""
    known = [(name, colour) for name, colour in _HIGHLIGHTED.items() if name in policies]
    handles: list[Patch | Line2D] = [Patch(color=colour, label=name) for name, colour in known]
    if len(known) < len(policies):
        handles.append(Patch(color=_OTHER, label="other policies"))
    handles.append(Line2D([], [], color="black", marker="_", label="standard deviation over seeds"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
