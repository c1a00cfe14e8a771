"""Contents of the panels of a figure, independent of how they are drawn.

Panels are about as wide as a phone, so that a page shows them side by side where there is room, and
one below another where there is not. Names are therefore on the vertical axis, where long ones fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from profiler.reports.statistics import Distribution


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis.

    Attributes:
        log: whether it is logarithmic; a linear one starts at 0 unless `limits` says otherwise.
        limits: its ends, if they do not follow from the values.
    """

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A named sequence of values, None where there is no value.

    Attributes:
        hollow: whether it is drawn as outlines, for values that were not measured.
    """

    name: str
    values: tuple[float | None, ...]
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """One marker per row and series.

    Attributes:
        ordered: whether the series are steps of one quantity, drawn from light to dark.
    """

    title: str
    rows: tuple[str, ...]
    series: tuple[Series, ...]
    axis: Axis
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """One distribution per row: range, quartiles, median and mean, optionally the 99th percentile.

    Attributes:
        boxes: the distributions; None for a row without values.
        highlighted: rows drawn in colour, by name; the others are grey if there are any.
        p99: whether the 99th percentile is marked.
    """

    title: str
    rows: tuple[str, ...]
    boxes: tuple[Distribution | None, ...]
    axis: Axis
    highlighted: tuple[str, ...] = ()
    p99: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One bar per row, with its spread, and optionally a printed value.

    Attributes:
        errors: half the widths of confidence intervals; empty for none.
        printed: values printed in the thesis; empty for none.
        highlighted: rows drawn in colour, by name; the others are grey if there are any.
    """

    title: str
    rows: tuple[str, ...]
    values: tuple[float | None, ...]
    axis: Axis
    errors: tuple[float, ...] = ()
    printed: tuple[float | None, ...] = ()
    highlighted: tuple[str, ...] = ()
    error_name: str = "95 % confidence interval of the mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Polyline:
    """A named line through points.

    Attributes:
        emphasis: whether it stands out; other lines are thin.
        dashed: whether it is a reference instead of data.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    emphasis: bool = False
    dashed: bool = False
    legend: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines over an x axis whose ticks are the values that occur."""

    title: str
    lines: tuple[Polyline, ...]
    x: Axis
    y: Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """One bar per row, divided into the parts of a whole (1.0)."""

    title: str
    rows: tuple[str, ...]
    parts: tuple[Series, ...]
    axis: Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Named points.

    Attributes:
        line: whether the points are joined, as on a front.
        muted: whether they are background; the legend names the first such cloud only.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    line: bool = False
    muted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Clouds of points over two quantities.

    Attributes:
        lines_at: named vertical lines.
    """

    title: str
    clouds: tuple[Cloud, ...]
    x: Axis
    y: Axis
    lines_at: tuple[tuple[str, float], ...] = ()


Chart: TypeAlias = Dots | Boxes | Bars | Lines | Shares | Scatter
