"""Figures: files, plain tick labels, and scales that show the smallest series too.

Needs matplotlib; import it only where a figure is drawn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes

    Direction = Literal["x", "y"]

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
