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
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

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
_DIGITS: Final = 4


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, creating its directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=_DPI)
    return path


def plain_number(value: float) -> str:
    """Return a number without exponent, with thousands separators: 0.002, 50, 12,000."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, _DIGITS - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def plain_ticks(axes: Axes, *directions: Direction) -> None:
    """Label the ticks of linear axes with plain numbers, without offset or exponent."""
    for direction in directions:
        axis = axes.xaxis if direction == "x" else axes.yaxis
        axis.set_major_formatter(FuncFormatter(lambda value, _at: plain_number(value)))


def use_log(axes: Axes, direction: Direction) -> None:
    """Make an axis logarithmic, with ticks at 1, 2 and 5 of each decade as plain numbers."""
    axis = axes.xaxis if direction == "x" else axes.yaxis
    (axes.set_xscale if direction == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=16))
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
_LEGEND_CHARACTERS: Final = 62
"""Characters of a legend that fit in a line."""
_KEY_CHARACTERS: Final = 6.5
"""Characters as wide as the key of an entry, with its spaces."""
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


def legend_columns(names: Sequence[str]) -> int:
    """Return the largest number of columns with which a legend fits the width of a panel."""
    for columns in range(len(names), 1, -1):
        rows = math.ceil(len(names) / columns)
        widths = [
            max(len(name) for name in names[at : at + rows]) for at in range(0, len(names), rows)
        ]
        if sum(widths) + _KEY_CHARACTERS * len(widths) <= _LEGEND_CHARACTERS:
            return columns
    return 1


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


def thin_log_ticks(axes: Axes, low: float, high: float) -> None:
    """Label few powers of ten on a wide logarithmic axis, and 1, 2 and 5 on a narrow one."""
    decades = math.log10(high / low)
    if decades > 1.9:
        steps = (1.0,) if decades > 2.8 else (1.0, 3.0)
        ticks = [
            step * 10.0**power
            for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for step in steps
        ]
        axes.set_xticks([tick for tick in ticks if low <= tick <= high])


def scale_log(axes: Axes, values: Sequence[float], limits: tuple[float, float] | None) -> None:
    """Make the horizontal axis logarithmic, from the smallest value to the largest or to limits."""
    low, high = min(values), max(values)
    margin = max(1.15, (high / low) ** 0.06)
    low, high = limits or (low / margin, high * margin)
    use_log(axes, "x")
    axes.set_xlim(low, high)
    thin_log_ticks(axes, low, high)


def scale_from_zero(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis of bars logarithmic, and linear from 0 to below the smallest."""
    least = min(value for value in values if value > 0)
    threshold = 10.0 ** math.floor(math.log10(max(least, max(values) / 1e4)))
    axes.set_xscale("symlog", linthresh=threshold, linscale=0.4)
    powers = range(round(math.log10(threshold)), math.ceil(math.log10(max(values))) + 1)
    axes.set_xticks([0.0, *(10.0**power for power in powers)])
    axes.set_xlim(0, max(values) * 1.3)
    axes.minorticks_off()
    plain_ticks(axes, "x")


def draw_box(axes: Axes, row: int, box: Distribution, colour: str, *, p99: bool) -> None:
    """Draw a distribution along a row: range, quartiles, median, mean, and the 99th percentile."""
    axes.plot([box.low, box.high], [row, row], color=colour, linewidth=1.2, solid_capstyle="butt")
    for end in (box.low, box.high):
        axes.plot([end, end], [row - 0.14, row + 0.14], color=colour, linewidth=1.2)
    if box.count > 1:
        axes.barh(
            row,
            box.upper - box.lower,
            left=box.lower,
            height=0.52,
            color=tint(colour),
            edgecolor=colour,
            linewidth=1.0,
        )
        axes.plot([box.median, box.median], [row - 0.26, row + 0.26], color=colour, linewidth=1.8)
    axes.plot([box.mean], [row], marker="D", markersize=4, color=INK, linestyle="")
    if p99:
        axes.plot([box.p99], [row], marker="|", markersize=10, markeredgewidth=2, color=PRINTED)


def box_legend(colour: str, *, p99: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, linewidth=1.2, label="range"),
        Patch(facecolor=tint(colour), edgecolor=colour, label="quartiles, median"),
        Line2D([], [], color=INK, marker="D", markersize=4, linestyle="", label="mean"),
    ]
    if p99:
        mark = Line2D([], [], color=PRINTED, marker="|", markersize=9, linestyle="", label="p99")
        mark.set_markeredgewidth(2)
        handles.append(mark)
    return handles
