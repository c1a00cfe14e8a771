"""The panels of figures, drawn with matplotlib.

Panels are about as wide as a phone, so that a page shows them side by side where there is room, and
one below another where there is not. Names are therefore on the vertical axis, where long ones fit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from profiler.reports.drawing import (
    COLOURS,
    INK,
    MAX_HEIGHT,
    MUTED,
    PRINTED,
    box_legend,
    draw_box,
    is_dwarfed,
    plain_ticks,
    scale_from_zero,
    scale_log,
    series_style,
    step_style,
    tint,
    use_log,
    use_round_ticks,
)
from profiler.reports.wording import shorten

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from profiler.reports.statistics import Distribution

Points: TypeAlias = "Sequence[tuple[float, float]]"

_HATCHES: Final = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")
_HIGHLIGHT: Final = COLOURS[0]
_GREY: Final = "#9aa5b1"
_ROW: Final = 0.27
_AROUND_ROWS: Final = 1.25
"""Inches for title, axis and legend of a panel whose height depends on its rows."""
_PLOT_HEIGHT: Final = 3.6
_LEGEND_ROW: Final = 0.2
_LEGEND_CHARACTERS: Final = 62
"""Characters of a legend that fit in a line."""
_KEY_CHARACTERS: Final = 7
"""Characters as wide as the key of an entry, with its spaces."""
_DODGE: Final = 0.14
"""Rows between the markers of two series, so that equal values stay visible."""
_MAX_DODGED: Final = 4


@dataclass(frozen=True, kw_only=True)
class Chart(ABC):
    """A panel of a figure."""

    title: str

    def draw(self, figure: Figure) -> None:
        """Draw on an empty figure, and give it the height that this takes."""
        axes = figure.subplots()
        axes.set_title(self.title, pad=8)
        axes.tick_params(length=0)
        height = self._plot_height()
        if handles := self._draw(axes):
            longest = max(len(str(handle.get_label())) for handle in handles)
            columns = max(1, _LEGEND_CHARACTERS // (longest + _KEY_CHARACTERS))
            figure.legend(handles=handles, loc="outside lower left", ncols=columns)
            height += _LEGEND_ROW * (math.ceil(len(handles) / columns) - 1)
        figure.set_figheight(min(MAX_HEIGHT, height))

    @abstractmethod
    def _draw(self, axes: Axes) -> list[Any]:
        """Draw on empty axes; return the entries of the legend."""

    def _plot_height(self) -> float:
        return _PLOT_HEIGHT


@dataclass(frozen=True, kw_only=True)
class _RowChart(Chart):
    """A panel with one row per name.

    Attributes:
        label: label of the horizontal axis.
        log: whether that is logarithmic; a linear one starts at 0 unless `limits` says otherwise.
        limits: its ends, if they do not follow from the values.
    """

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None

    @abstractmethod
    def _rows(self) -> Sequence[str]:
        """Return the names of the rows."""

    def _plot_height(self) -> float:
        return _AROUND_ROWS + _ROW * max(3, len(self._rows()))

    def _name_rows(self, axes: Axes) -> None:
        rows = self._rows()
        axes.set_yticks(range(len(rows)), [shorten(row) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", pad=8)  # room for a marker at 0
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(self.label)

    def _scale_values(self, axes: Axes, values: Sequence[float]) -> None:
        positive = [value for value in values if value > 0]
        if self.log and positive:
            scale_log(axes, positive, self.limits)
        else:
            axes.set_xlim(self.limits or (0, max(values, default=0) * 1.08 or 1))
            use_round_ticks(axes)


@dataclass(frozen=True, kw_only=True)
class Dots(_RowChart):
    """One marker per row and series; None where there is no value.

    Attributes:
        series: values by row, by name.
        ordered: whether the series are steps of one quantity, drawn from light to dark.
        hollow: series drawn as outlines around the others.
    """

    rows: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    ordered: bool = False
    hollow: Collection[str] = ()

    def _rows(self) -> Sequence[str]:
        return self.rows

    def _draw(self, axes: Axes) -> list[Any]:
        handles: list[Any] = []
        steps = len(self.series)
        dodges = steps <= _MAX_DODGED and not self.ordered and not self.hollow
        dodge = _DODGE if dodges else 0.0
        for number, (name, values) in enumerate(self.series.items()):
            colour, marker = step_style(number, steps) if self.ordered else series_style(number)
            offset = dodge * (number - (steps - 1) / 2)
            points = [(v, row + offset) for row, v in enumerate(values) if v is not None]
            is_hollow = name in self.hollow
            [line] = axes.plot(
                [value for value, _ in points],
                [row for _, row in points],
                linestyle="",
                marker=marker,
                markersize=8.5 if is_hollow else 5.5,  # visible around a filled one
                color=colour,
                markerfacecolor="white" if is_hollow else colour,
                label=name,
                clip_on=False,
                zorder=2 if is_hollow else 3,
            )
            handles.append(line)
        self._name_rows(axes)
        every = (v for values in self.series.values() for v in values)
        self._scale_values(axes, [v for v in every if v is not None])
        return handles


@dataclass(frozen=True, kw_only=True)
class Boxes(_RowChart):
    """One distribution per row: range, quartiles, median and mean, optionally the 99th percentile.

    Attributes:
        boxes: the distributions by row; None for a row without values.
        highlighted: rows drawn in colour; the others are grey if there are any.
        p99: whether the 99th percentile is marked.
    """

    boxes: Mapping[str, Distribution | None]
    highlighted: Collection[str] = ()
    p99: bool = False

    def _rows(self) -> Sequence[str]:
        return list(self.boxes)

    def _draw(self, axes: Axes) -> list[Any]:
        ends: list[float] = []
        for row, (name, box) in enumerate(self.boxes.items()):
            if box is not None:
                draw_box(axes, row, box, _row_colour(name, self.highlighted), p99=self.p99)
                ends += [box.low, box.high]
        self._name_rows(axes)
        self._scale_values(axes, ends)
        return box_legend(_HIGHLIGHT, p99=self.p99)


@dataclass(frozen=True, kw_only=True)
class Bars(_RowChart):
    """One bar per row, with its spread, and optionally a value printed in the thesis.

    Attributes:
        lengths: the values by row; None for a row without one.
        errors: half the widths of confidence intervals by row; empty for none.
        printed: printed values by row.
        highlighted: rows drawn in colour; the others are grey if there are any.
    """

    lengths: Mapping[str, float | None]
    errors: Mapping[str, float] = field(default_factory=dict)
    printed: Mapping[str, float] = field(default_factory=dict)
    highlighted: Collection[str] = ()

    def _rows(self) -> Sequence[str]:
        return list(self.lengths)

    def _draw(self, axes: Axes) -> list[Any]:
        rows = {name: row for row, name in enumerate(self.lengths)}
        known = {name: value for name, value in self.lengths.items() if value is not None}
        places = [rows[name] for name in known]
        lengths = list(known.values())
        colours = [_row_colour(name, self.highlighted) for name in known]
        axes.barh(places, lengths, height=0.62, color=colours)
        handles: list[Any] = []
        spreads = [self.errors.get(name, 0.0) for name in known]
        if self.errors:
            down = [min(pair) for pair in zip(lengths, spreads, strict=True)]
            style: dict[str, Any] = {"fmt": "none", "elinewidth": 1.0, "capsize": 2.0}
            axes.errorbar(lengths, places, xerr=[down, spreads], ecolor=INK, **style)
            name = "95 % confidence interval of the mean"
            handles.append(Line2D([], [], color=INK, linewidth=1.0, label=name))
        if self.printed:
            [marks] = axes.plot(
                list(self.printed.values()),
                [rows[name] for name in self.printed],
                linestyle="",
                marker="D",
                markersize=5.5,
                markerfacecolor="white",
                markeredgecolor=PRINTED,
                markeredgewidth=1.5,
                label="printed in the thesis (one run)",
                clip_on=False,
            )
            handles.append(marks)
        self._name_rows(axes)
        ends = [value + spread for value, spread in zip(lengths, spreads, strict=True)]
        ends += self.printed.values()
        if self.log and is_dwarfed(lengths):
            scale_from_zero(axes, ends)
        else:
            axes.set_xlim(0, max(ends, default=0) * 1.08 or 1)
            use_round_ticks(axes)
        return handles


@dataclass(frozen=True, kw_only=True)
class Shares(_RowChart):
    """One bar per row, divided into the parts of a whole (1.0).

    Attributes:
        parts: shares by row, by name.
    """

    rows: Sequence[str]
    parts: Mapping[str, Sequence[float | None]]

    def _rows(self) -> Sequence[str]:
        return self.rows

    def _draw(self, axes: Axes) -> list[Any]:
        handles: list[Any] = []
        left = [0.0] * len(self.rows)
        for number, (name, shares) in enumerate(self.parts.items()):
            colour, _ = series_style(number)
            widths = [value or 0.0 for value in shares]
            style: dict[str, Any] = {
                "facecolor": tint(colour),
                "edgecolor": colour,
                "hatch": _HATCHES[number % len(_HATCHES)],
            }
            axes.barh(range(len(self.rows)), widths, left=left, height=0.62, linewidth=0.8, **style)
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
            handles.append(Patch(label=name, **style))
        self._name_rows(axes)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
        return handles


@dataclass(frozen=True, kw_only=True)
class Speedups(Chart):
    """Lines over logarithmic axes, whose horizontal ticks are the values that occur.

    Attributes:
        single: thin lines, called `single_name` together.
        means: thick lines by name.
        reference: a dashed line, called linear.
    """

    x_label: str
    y_label: str
    single: Sequence[Points]
    single_name: str
    means: Mapping[str, Points]
    reference: Points

    def _draw(self, axes: Axes) -> list[Any]:
        handles: list[Any] = []
        for points in self.single:
            [line] = axes.plot(*_split(points), color=_GREY, linewidth=0.9, alpha=0.8)
            line.set_label(self.single_name)
            handles = [line]
        for number, (name, points) in enumerate(self.means.items()):
            colour, marker = series_style(number)
            style: dict[str, Any] = {"markersize": 5, "linewidth": 2.2, "zorder": 4}
            handles += axes.plot(*_split(points), color=colour, marker=marker, label=name, **style)
        dashes = (0, (4, 3))
        handles += axes.plot(
            *_split(self.reference), color=MUTED, linestyle=dashes, linewidth=1.0, label="linear"
        )
        lines = (*self.single, *self.means.values(), self.reference)
        ticks = sorted({x for points in lines for x, _ in points})
        use_log(axes, "x")
        use_log(axes, "y")
        axes.set_xticks(ticks if len(ticks) <= 8 else ticks[:: math.ceil(len(ticks) / 8)])
        axes.minorticks_off()
        plain_ticks(axes, "x", "y")
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.grid(axis="y")
        return handles


@dataclass(frozen=True, kw_only=True)
class Scatter(Chart):
    """Joined points over two quantities, on logarithmic axes.

    Attributes:
        clouds: points by name.
        background: clouds that are not told apart, called `background_name` together.
    """

    x_label: str
    y_label: str
    clouds: Mapping[str, Points]
    background: Sequence[Points] = ()
    background_name: str = ""

    def _draw(self, axes: Axes) -> list[Any]:
        handles: list[Any] = []
        style: dict[str, Any] = {"markersize": 5, "clip_on": False, "linestyle": "-"}
        for number, (name, points) in enumerate(self.clouds.items()):
            colour, marker = series_style(number)
            style |= {"color": colour, "marker": marker, "linewidth": 1.4, "zorder": 3}
            handles += axes.plot(*_split(points), label=name, **style)
        for number, points in enumerate(self.background):
            style |= {"color": _GREY, "marker": ".", "linewidth": 0.8, "zorder": 2}
            drawn = axes.plot(*_split(points), label=self.background_name, **style)
            handles += [] if number else drawn
        use_log(axes, "x")
        use_log(axes, "y")
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.grid()
        return handles


def _split(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _row_colour(name: str, highlighted: Collection[str]) -> str:
    return _HIGHLIGHT if not highlighted or name in highlighted else _GREY
