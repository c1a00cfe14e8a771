"""Plots of an engine: the fronts of its variants, and its cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.runtime.figures import make_figure, plain_ticks, save, use_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from profiler.engines.fronts import FrontPoint, VariantFront
    from synergai.models.cutting.cuts import Cut

_FRONT: Final = "#0072b2"
_DOMINATED: Final = "#9aa5b1"
_WIDE: Final = 5.0
"""Ratio of the largest to the smallest throughput from which the axis is logarithmic."""
_COLUMNS: Final = 3


def plot_fronts(fronts: Sequence[VariantFront], title: str, path: Path) -> None:
    """Write a PNG of the fronts; bars are standard errors."""
    columns = min(_COLUMNS, len(fronts))
    rows = -(-len(fronts) // columns)
    figure = make_figure(6.0 * columns, 4.5 * rows)
    figure.suptitle(title)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(fronts) :]:
        axes.set_visible(False)
    for axes, front in zip(panels, fronts, strict=False):
        _panel(axes, front)
    save(figure, path)


def _panel(axes: Axes, front: VariantFront) -> None:
    known = [point for point in front.points if point.accuracy is not None]
    dominated = [point for point in known if point.dominated_by]
    _points(axes, dominated, _DOMINATED, "dominated", "o")
    _points(axes, front.front, _FRONT, "on the front", "s")
    stairs = sorted((point.qps, (point.accuracy or 0.0) * 100) for point in front.front)
    axes.plot(*_pairs(stairs), drawstyle="steps-pre", color=_FRONT, alpha=0.4)
    for point in known:
        axes.annotate(
            point.variant,
            (point.qps, (point.accuracy or 0.0) * 100),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=8,
            color=_DOMINATED if point.dominated_by else _FRONT,
        )
    rates = [point.qps for point in known]
    if rates and max(rates) > _WIDE * min(rates):
        use_log(axes, "x")
    else:
        plain_ticks(axes, "x")
    axes.set_title(f"{front.worker_class}, {front.configuration}")
    axes.set_xlabel("queries per second")
    axes.set_ylabel("accuracy (%)")
    axes.grid(alpha=0.3)
    if known:
        axes.legend(loc="lower left")


def _points(axes: Axes, points: Sequence[FrontPoint], colour: str, label: str, marker: str) -> None:
    if not points:
        return
    axes.errorbar(
        [point.qps for point in points],
        [(point.accuracy or 0.0) * 100 for point in points],
        xerr=[point.qps * point.qps_error for point in points],
        yerr=[(point.accuracy_error or 0.0) * 100 for point in points],
        fmt=marker,
        color=colour,
        label=label,
        capsize=2,
        elinewidth=1,
        markersize=4,
    )


def _pairs(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


_SEAM: Final = "#0072b2"
_OTHER: Final = "#9aa5b1"
_MIB: Final = 1 << 20


def plot_cuts(cuts: Sequence[Cut], title: str, path: Path) -> None:
    """Write a PNG of cuts."""
    figure = make_figure(9.0, 7.0)
    figure.suptitle(title)
    sizes, weights = figure.subplots(2, 1, sharex=True)
    for label, colour, chosen in (
        ("seam", _SEAM, [cut for cut in cuts if cut.seam]),
        ("other cut", _OTHER, [cut for cut in cuts if not cut.seam]),
    ):
        if chosen:
            work = [cut.work * 100 for cut in chosen]
            megabytes = [cut.size_bytes / _MIB for cut in chosen]
            sizes.plot(work, megabytes, "o", color=colour, label=label, markersize=4)
    use_log(sizes, "y")
    sizes.set_ylabel("tensor (MiB)")
    if cuts:
        sizes.legend()
    work = [cut.work * 100 for cut in cuts]
    for label, values in (
        ("before", [cut.weights_before / _MIB for cut in cuts]),
        ("behind", [cut.weights_after / _MIB for cut in cuts]),
    ):
        weights.plot(work, values, label=label)
    plain_ticks(weights, "y")
    weights.set_ylabel("weights (MiB)")
    weights.set_xlabel("estimated work before the cut (%)")
    if cuts:
        weights.legend()
    for axes in (sizes, weights):
        axes.grid(alpha=0.3)
    save(figure, path)
