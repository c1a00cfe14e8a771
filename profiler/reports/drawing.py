"""The style that all charts share.

The colours are Okabe and Ito's, which people with any colour vision can tell apart. Series
differ in their markers as well, so that nothing depends on colour alone.

Needs matplotlib; import it only where a figure is drawn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from profiler.reports.statistics import Distribution

    Direction = Literal["x", "y"]


# Needs matplotlib; import it only where a figure is drawn.

DWARFED: Final = 50.0
"""Ratio of the largest to the smallest series beyond which a linear axis hides the smallest."""
_DPI: Final = 120


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, creating its directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI)
    return path


def plain_ticks(axes: Axes, *directions: Direction) -> None:
    """Label ticks with numbers such as 0.002, 50 and 12,000, without offset."""
    for direction in directions:
        axis = axes.xaxis if direction == "x" else axes.yaxis
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def use_log(axes: Axes, direction: Direction) -> None:
    """Make an axis logarithmic; the more decades it has, the fewer ticks of each."""
    axis = axes.xaxis if direction == "x" else axes.yaxis
    (axes.set_xscale if direction == "x" else axes.set_yscale)("log")
    low, high = axes.get_xlim() if direction == "x" else axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1.0, 2.0, 5.0) if decades < 1.9 else (1.0, 3.0) if decades < 2.8 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=16))
    axis.set_minor_formatter(NullFormatter())
    plain_ticks(axes, direction)


def is_dwarfed(series: Iterable[float]) -> bool:
    """Return whether the largest of the series dwarfs the smallest that is not zero."""
    sizes = [abs(each) for each in series if each and math.isfinite(each)]
    return bool(sizes) and max(sizes) > DWARFED * min(sizes)


INK: Final = "#1f2933"
MUTED: Final = "#7b8794"
COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#8c6d31",
)
PRINTED: Final = COLOURS[1]
"""Of values that the thesis prints, and of 99th percentiles."""
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH: Final = 5.0
"""Inches of a panel: 360 units of SVG, the width of a phone."""
MAX_HEIGHT: Final = 60.0
_P99_MARK: Final[dict[str, Any]] = {
    "marker": "|",
    "markersize": 10,
    "markeredgewidth": 2,
    "markeredgecolor": PRINTED,
}
STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
}


def series_style(number: int) -> tuple[str, str]:
    """Return colour and marker of a series; no two of the first 64 are alike."""
    lap = number // len(COLOURS)
    return COLOURS[number % len(COLOURS)], _MARKERS[(number + lap) % len(_MARKERS)]


def step_style(number: int, steps: int) -> tuple[str, str]:
    """Return colour and marker of a step of a quantity, from light to dark."""
    shade = 0.88 - 0.82 * number / max(1, steps - 1)
    return to_hex(colormaps["viridis"](shade)), _MARKERS[number % len(_MARKERS)]


def tint(colour: str) -> str:
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * 0.72):02x}" for part in parts)


def use_round_ticks(axes: Axes) -> None:
    """Put few ticks at round values on the horizontal axis, which is linear."""
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    plain_ticks(axes, "x")


def scale_log(axes: Axes, values: Sequence[float], limits: tuple[float, float] | None) -> None:
    """Make the horizontal axis logarithmic, from the smallest value to the largest or to limits."""
    low, high = min(values), max(values)
    margin = max(1.15, (high / low) ** 0.06)
    axes.set_xlim(limits or (low / margin, high * margin))
    use_log(axes, "x")


def scale_from_zero(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis of bars logarithmic, and linear from 0 to below the smallest."""
    least = min(value for value in values if value > 0)
    threshold = 10.0 ** math.floor(math.log10(max(least, max(values) / 1e4)))
    axes.set_xscale("symlog", linthresh=threshold, linscale=0.4)
    axes.set_xlim(0, max(values) * 1.3)
    axes.minorticks_off()
    plain_ticks(axes, "x")


def draw_box(axes: Axes, row: int, box: Distribution, colour: str, *, p99: bool) -> None:
    """Draw a distribution along a row: range, quartiles, median, mean, and the 99th percentile."""
    drawn = {"whislo": box.low, "q1": box.lower, "med": box.median, "q3": box.upper}
    drawn |= {"whishi": box.high, "mean": box.mean}
    line = {"color": colour, "linewidth": 1.2}
    axes.bxp(
        [{**drawn, "fliers": [box.p99]}],
        positions=[row],
        widths=0.52,
        orientation="horizontal",
        patch_artist=True,
        showmeans=True,
        showfliers=p99,
        manage_ticks=False,
        boxprops={"facecolor": tint(colour), "edgecolor": colour},
        medianprops={"color": colour, "linewidth": 1.8},
        whiskerprops=line,
        capprops=line,
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": INK, "markeredgecolor": INK},
        flierprops=_P99_MARK,
    )


def box_legend(colour: str, *, p99: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, linewidth=1.2, label="range"),
        Patch(facecolor=tint(colour), edgecolor=colour, label="quartiles, median"),
        Line2D([], [], color=INK, marker="D", markersize=4, linestyle="", label="mean"),
    ]
    if p99:
        handles.append(Line2D([], [], linestyle="", label="p99", **_P99_MARK))
    return handles
