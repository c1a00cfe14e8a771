"""Drawing of charts with matplotlib: SVG for a page, PNG files for everything else.

The colours are Okabe and Ito's, which people with any colour vision can tell apart. Series
differ in their markers as well, so that nothing depends on colour alone.

Needs matplotlib; import it only where a figure is drawn.
"""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any, Final

from matplotlib import colormaps, style
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from profiler.figures import is_dwarfed, make_figure, plain_ticks, save, use_log
from profiler.reports.charts import Bars, Boxes, Dots, Lines, Scatter, Shares
from profiler.reports.wording import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    from profiler.reports.charts import Axis, Chart
    from profiler.reports.document import Figure
    from profiler.reports.statistics import Distribution

INK: Final = "#1f2933"
_MUTED: Final = "#7b8794"
_GRID: Final = "#e4e7eb"
_COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#8c6d31",
)
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
_HIGHLIGHT: Final = _COLOURS[0]
_GREY: Final = "#9aa5b1"
_PRINTED: Final = _COLOURS[1]
_WIDTH: Final = 5.0
"""Inches of a panel: 360 units of SVG, the width of a phone."""
_ROW: Final = 0.27
_AROUND_ROWS: Final = 1.25
"""Inches for title, axis and legend of a panel whose height depends on its rows."""
_PLOT_HEIGHT: Final = 3.6
_LEGEND_ROW: Final = 0.2
_MAX_HEIGHT: Final = 60.0
_DODGE: Final = 0.14
"""Rows between the markers of two series, so that equal values stay visible."""
_MAX_DODGED: Final = 4
_LEGEND_CHARACTERS: Final = 62
"""Characters of a legend that fit in a line."""
_KEY_CHARACTERS: Final = 6.5
"""Characters as wide as the key of an entry, with its spaces."""
_STYLE: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": _MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
}
_ID: Final = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE: Final = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')


def draw_svg(chart: Chart, key: str) -> str:
    """Draw a chart as an SVG element to be put into a page.

    Args:
        key: prefix of the element's ids, unique in the page.
    """
    with style.context([_STYLE, {"svg.hashsalt": key}]):
        figure = make_figure(_WIDTH, _height(chart))
        draw(figure, chart)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = _ID.sub(rf"\g<1>{key}-", text.getvalue()[text.getvalue().index("<svg ") :])
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Its size is left to the page.
    return _SIZE.sub(
        r'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        r'viewBox="0 0 \1 \2" aria-hidden="true">',
        svg,
        count=1,
    )


def write_png(figure: Figure, path: Path) -> Path:
    """Draw all panels of a figure into one PNG file."""
    with style.context(_STYLE):
        columns = min(figure.columns, len(figure.panels))
        rows = [figure.panels[at : at + columns] for at in range(0, len(figure.panels), columns)]
        heights = [max(map(_height, row)) for row in rows]
        canvas = make_figure(_WIDTH * columns, min(sum(heights), _MAX_HEIGHT))
        parts = canvas.subfigures(len(rows), columns, squeeze=False, height_ratios=heights)
        for row, places in zip(rows, parts, strict=True):
            for chart, place in zip(row, places, strict=False):
                draw(place, chart)
        return save(canvas, path)


def draw(canvas: FigureBase, chart: Chart) -> None:
    """Draw a chart on an empty figure or part of one."""
    axes = canvas.subplots()
    axes.set_title(chart.title, pad=8)
    axes.tick_params(length=0)
    match chart:
        case Dots():
            handles = _draw_dots(axes, chart)
        case Boxes():
            handles = _draw_boxes(axes, chart)
        case Bars():
            handles = _draw_bars(axes, chart)
        case Lines():
            handles = _draw_lines(axes, chart)
        case Shares():
            handles = _draw_shares(axes, chart)
        case Scatter():
            handles = _draw_scatter(axes, chart)
    if handles:
        columns = _legend_columns([str(handle.get_label()) for handle in handles])
        canvas.legend(handles=handles, loc="outside lower left", ncols=columns)


def _legend_columns(names: Sequence[str]) -> int:
    """Return the largest number of columns with which a legend fits the width of a panel."""
    for columns in range(len(names), 1, -1):
        rows = math.ceil(len(names) / columns)
        widths = [
            max(len(name) for name in names[at : at + rows]) for at in range(0, len(names), rows)
        ]
        if sum(widths) + _KEY_CHARACTERS * len(widths) <= _LEGEND_CHARACTERS:
            return columns
    return 1


def _height(chart: Chart) -> float:
    """Return the inches of a panel."""
    names: list[str] = []
    match chart:
        case Scatter():
            height = _PLOT_HEIGHT
            names = list(dict.fromkeys(cloud.name for cloud in chart.clouds))
        case Lines():
            height = _PLOT_HEIGHT
        case Dots() | Boxes() | Bars() | Shares():
            height = _AROUND_ROWS + _ROW * max(3, len(chart.rows))
            if isinstance(chart, Dots):
                names = [series.name for series in chart.series]
    if names:
        height += _LEGEND_ROW * (math.ceil(len(names) / _legend_columns(names)) - 1)
    return min(_MAX_HEIGHT, height)


def _style_of(number: int) -> tuple[str, str]:
    """Return colour and marker of a series; no two of the first 64 are alike."""
    lap = number // len(_COLOURS)
    return _COLOURS[number % len(_COLOURS)], _MARKERS[(number + lap) % len(_MARKERS)]


def _step_style(number: int, steps: int) -> tuple[str, str]:
    """Return colour and marker of a step of a quantity, from light to dark."""
    shade = 0.88 - 0.82 * number / max(1, steps - 1)
    return to_hex(colormaps["viridis"](shade)), _MARKERS[number % len(_MARKERS)]


def _name_rows(axes: Axes, rows: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), [shorten(row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", pad=8)  # room for a marker at 0
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _scale_values(axes: Axes, axis: Axis, values: Sequence[float]) -> None:
    """Scale the horizontal axis of a chart with named rows."""
    axes.set_xlabel(axis.label)
    positive = [value for value in values if value > 0]
    if axis.log and positive:
        low, high = min(positive), max(positive)
        margin = max(1.15, (high / low) ** 0.06)
        low, high = axis.limits or (low / margin, high * margin)
        use_log(axes, "x")
        axes.set_xlim(low, high)
        _thin_ticks(axes, low, high)
    elif axis.limits:
        axes.set_xlim(*axis.limits)
        _round_ticks(axes)
    else:
        axes.set_xlim(0, max(values, default=0) * 1.08 or 1)
        _round_ticks(axes)


def _round_ticks(axes: Axes) -> None:
    """Put few ticks at round values on the horizontal axis, which is linear."""
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    plain_ticks(axes, "x")


def _thin_ticks(axes: Axes, low: float, high: float) -> None:
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


def _draw_dots(axes: Axes, chart: Dots) -> list[Any]:
    handles: list[Any] = []
    dodges = len(chart.series) <= _MAX_DODGED and not chart.ordered
    dodges &= not any(series.hollow for series in chart.series)  # drawn around the others
    dodge = _DODGE if dodges else 0.0
    for number, series in enumerate(chart.series):
        steps = len(chart.series)
        colour, marker = _step_style(number, steps) if chart.ordered else _style_of(number)
        offset = dodge * (number - (len(chart.series) - 1) / 2)
        points = [(v, row + offset) for row, v in enumerate(series.values) if v is not None]
        [line] = axes.plot(
            [value for value, _ in points],
            [row for _, row in points],
            linestyle="",
            marker=marker,
            markersize=8.5 if series.hollow else 5.5,  # visible around a filled one
            color=colour,
            markerfacecolor="white" if series.hollow else colour,
            label=series.name,
            clip_on=False,
            zorder=2 if series.hollow else 3,
        )
        handles.append(line)
    _name_rows(axes, chart.rows)
    values = [v for series in chart.series for v in series.values if v is not None]
    _scale_values(axes, chart.axis, values)
    return handles


def _draw_boxes(axes: Axes, chart: Boxes) -> list[Any]:
    known = [(row, box) for row, box in enumerate(chart.boxes) if box is not None]
    for row, box in known:
        highlighted = not chart.highlighted or chart.rows[row] in chart.highlighted
        _draw_box(axes, row, box, _HIGHLIGHT if highlighted else _GREY, p99=chart.p99)
    _name_rows(axes, chart.rows)
    _scale_values(axes, chart.axis, [v for _, box in known for v in (box.low, box.high)])
    handles: list[Any] = [
        Line2D([], [], color=_HIGHLIGHT, linewidth=1.2, label="range"),
        Patch(facecolor=_tint(_HIGHLIGHT), edgecolor=_HIGHLIGHT, label="quartiles, median"),
        Line2D([], [], color=INK, marker="D", markersize=4, linestyle="", label="mean"),
    ]
    if chart.p99:
        handles.append(
            Line2D(
                [],
                [],
                color=_PRINTED,
                marker="|",
                markersize=9,
                markeredgewidth=2,
                linestyle="",
                label="p99",
            )
        )
    return handles


def _draw_box(axes: Axes, row: int, box: Distribution, colour: str, *, p99: bool) -> None:
    axes.plot([box.low, box.high], [row, row], color=colour, linewidth=1.2, solid_capstyle="butt")
    for end in (box.low, box.high):
        axes.plot([end, end], [row - 0.14, row + 0.14], color=colour, linewidth=1.2)
    if box.count > 1:
        axes.barh(
            row,
            box.upper - box.lower,
            left=box.lower,
            height=0.52,
            color=_tint(colour),
            edgecolor=colour,
            linewidth=1.0,
        )
        axes.plot([box.median, box.median], [row - 0.26, row + 0.26], color=colour, linewidth=1.8)
    axes.plot([box.mean], [row], marker="D", markersize=4, color=INK, linestyle="")
    if p99:
        axes.plot([box.p99], [row], marker="|", markersize=10, markeredgewidth=2, color=_PRINTED)


def _tint(colour: str) -> str:
    """Return a light tint of a colour."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * 0.72):02x}" for part in parts)


def _draw_bars(axes: Axes, chart: Bars) -> list[Any]:
    handles: list[Any] = []
    known = [(row, value) for row, value in enumerate(chart.values) if value is not None]
    colours = [
        _HIGHLIGHT if not chart.highlighted or chart.rows[row] in chart.highlighted else _GREY
        for row, _ in known
    ]
    axes.barh([row for row, _ in known], [v for _, v in known], height=0.62, color=colours)
    ends = [value for _, value in known]
    if chart.errors:
        spread = [chart.errors[row] for row, _ in known]
        down = [min(value, error) for (_, value), error in zip(known, spread, strict=True)]
        axes.errorbar(
            [value for _, value in known],
            [row for row, _ in known],
            xerr=[down, spread],
            fmt="none",
            ecolor=INK,
            elinewidth=1.0,
            capsize=2.0,
        )
        ends = [value + error for (_, value), error in zip(known, spread, strict=True)]
        handles.append(Line2D([], [], color=INK, linewidth=1.0, label=chart.error_name))
    printed = [(row, v) for row, v in enumerate(chart.printed) if v is not None]
    if printed:
        [marks] = axes.plot(
            [value for _, value in printed],
            [row for row, _ in printed],
            linestyle="",
            marker="D",
            markersize=5.5,
            markerfacecolor="white",
            markeredgecolor=_PRINTED,
            markeredgewidth=1.5,
            label="printed in the thesis (one run)",
            clip_on=False,
        )
        handles.append(marks)
    _name_rows(axes, chart.rows)
    values = [*ends, *(value for _, value in printed)]
    axes.set_xlabel(chart.axis.label)
    if chart.axis.log and is_dwarfed(value for _, value in known):
        # Bars start at 0, so that the axis is linear below the smallest.
        least = min(value for value in values if value > 0)
        threshold = 10.0 ** math.floor(math.log10(max(least, max(values) / 1e4)))
        axes.set_xscale("symlog", linthresh=threshold, linscale=0.4)
        powers = range(round(math.log10(threshold)), math.ceil(math.log10(max(values))) + 1)
        axes.set_xticks([0.0, *(10.0**power for power in powers)])
        axes.set_xlim(0, max(values) * 1.3)
        axes.minorticks_off()
        plain_ticks(axes, "x")
    else:
        axes.set_xlim(0, max(values, default=0) * 1.08 or 1)
        _round_ticks(axes)
    return handles


def _draw_lines(axes: Axes, chart: Lines) -> list[Any]:
    handles: list[Any] = []
    number = 0
    for line in chart.lines:
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        if line.dashed:
            [drawn] = axes.plot(xs, ys, color=_MUTED, linestyle=(0, (4, 3)), linewidth=1.0)
        elif line.emphasis:
            colour, marker = _style_of(number)
            number += 1
            [drawn] = axes.plot(
                xs, ys, color=colour, marker=marker, markersize=5, linewidth=2.2, zorder=4
            )
        else:
            [drawn] = axes.plot(xs, ys, color=_GREY, linewidth=0.9, alpha=0.8)
        drawn.set_label(line.name)
        if line.legend:
            handles.append(drawn)
    ticks = sorted({x for line in chart.lines for x, _ in line.points})
    for axis, direction in ((chart.x, "x"), (chart.y, "y")):
        if axis.log:
            use_log(axes, direction)  # type: ignore[arg-type]  # a literal, which mypy widens
    axes.set_xticks(ticks if len(ticks) <= 8 else ticks[:: math.ceil(len(ticks) / 8)])
    axes.minorticks_off()
    if not chart.y.log:
        axes.set_ylim(bottom=0)
    plain_ticks(axes, "x", "y")
    axes.set_xlabel(chart.x.label)
    axes.set_ylabel(chart.y.label)
    axes.grid(axis="y")
    return handles


def _draw_shares(axes: Axes, chart: Shares) -> list[Any]:
    handles: list[Any] = []
    left = [0.0] * len(chart.rows)
    hatches = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
    for number, part in enumerate(chart.parts):
        colour, _ = _style_of(number)
        widths = [value or 0.0 for value in part.values]
        axes.barh(
            range(len(chart.rows)),
            widths,
            left=left,
            height=0.62,
            color=_tint(colour),
            edgecolor=colour,
            hatch=hatches[number % len(hatches)],
            linewidth=0.8,
        )
        for row, width in enumerate(widths):
            if width >= 0.12:
                axes.text(
                    left[row] + width / 2,
                    row,
                    f"{width * 100:.0f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
                )
        left = [at + width for at, width in zip(left, widths, strict=True)]
        handles.append(
            Patch(
                facecolor=_tint(colour),
                edgecolor=colour,
                hatch=hatches[number % len(hatches)],
                label=part.name,
            )
        )
    _name_rows(axes, chart.rows)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    axes.set_xlabel(chart.axis.label)
    return handles


def _draw_scatter(axes: Axes, chart: Scatter) -> list[Any]:
    handles: list[Any] = []
    number = 0
    for cloud in chart.clouds:
        colour, marker = (_GREY, ".") if cloud.muted else _style_of(number)
        number += not cloud.muted
        [drawn] = axes.plot(
            [x for x, _ in cloud.points],
            [y for _, y in cloud.points],
            linestyle="-" if cloud.line else "",
            linewidth=0.8 if cloud.muted else 1.4,
            marker=marker,
            markersize=5,
            color=colour,
            label=cloud.name,
            clip_on=False,
            zorder=2 if cloud.muted else 3,
        )
        if cloud.name not in (handle.get_label() for handle in handles):
            handles.append(drawn)
    for name, at in chart.lines_at:
        handles.append(axes.axvline(at, color=_MUTED, linestyle=(0, (4, 3)), label=name))
    for axis, direction, limits in ((chart.x, "x", axes.set_xlim), (chart.y, "y", axes.set_ylim)):
        if axis.log:
            use_log(axes, direction)  # type: ignore[arg-type]  # a literal, which mypy widens
        else:
            limits(0)
            plain_ticks(axes, direction)  # type: ignore[arg-type]  # a literal, which mypy widens
    if chart.x.log:
        _thin_ticks(axes, *axes.get_xlim())
    axes.set_xlabel(chart.x.label)
    axes.set_ylabel(chart.y.label)
    axes.grid()
    return handles
