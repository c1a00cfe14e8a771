"""A report: one HTML page that needs nothing else, no script, no font, no network."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import style

from profiler.reports.drawing import STYLE, WIDTH, make_figure
from profiler.reports.wording import UNKNOWN, number
from synergai.errors import InvalidInput
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from profiler.reports.charts import Chart

Cell: TypeAlias = str | float | int | None
Records: TypeAlias = "Sequence[Mapping[str, Cell]]"
"""Rows of a table, one or more, with the same columns."""

_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|ms|s|min|h|QPS|MHz|W|J)(?!\w))")
"""The space between a number and its unit."""
_ID: Final = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE: Final = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; the caption says what it shows."""

    rows: Records
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of one or more panels.

    Attributes:
        key: its anchor, unique in the report.
        title: what it shows, with the thesis's number of the figure where it has one.
        caption: description in whole sentences.
        panels: the charts, by row.
        columns: most panels in a row.
    """

    key: str
    title: str
    caption: str
    panels: Sequence[Chart]
    columns: int


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Attributes:
        key: its anchor, unique in the report.
        blocks: figures, tables, and remarks that are set apart.
    """

    key: str
    title: str
    blocks: Sequence[Figure | Table | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report.

    Attributes:
        facts: values by name of what it is made of.
        banner: a warning at the top that concerns all of it; may be empty.
        is_reconstructed: whether every caption says that nothing was measured.
        findings: answers by question.
        made: when and by what it was made.
    """

    title: str
    summary: str
    facts: Mapping[str, str]
    banner: str
    is_reconstructed: bool
    findings: Mapping[str, str]
    sections: Sequence[Section]
    made: str


def write_report(report: Report, path: Path) -> None:
    """Write the page of a report, replacing an older one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, render(report))
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def render(report: Report) -> str:
    environment = Environment(
        loader=PackageLoader("profiler.reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"prose": _prose, "cell": _cell, "numeric_columns": _numeric_columns}
    environment.tests |= {
        "figure": lambda block: isinstance(block, Figure),
        "table": lambda block: isinstance(block, Table),
    }
    css = files("profiler.reports").joinpath("page.css").read_text("utf-8")
    template = environment.get_template("page.html.jinja")
    return template.render(report=report, style=Markup(css), svg=_svg)  # noqa: S704 - our own file


def _svg(chart: Chart, key: str) -> Markup:
    return Markup(draw_svg(chart, key))  # noqa: S704 - matplotlib escapes names


def _prose(text: str) -> Markup:
    """Escape a text, and keep numbers and their units on one line."""
    return Markup(_UNIT.sub("&nbsp;", escape(text)))  # noqa: S704 - just escaped


def _numeric_columns(rows: Records) -> dict[str, bool]:
    """Return whether all values of a column are numbers, by its name."""
    return {
        column: all(isinstance(row[column], int | float | None) for row in rows)
        for column in rows[0]
    }


def _cell(value: Cell) -> str:
    match value:
        case None:
            return UNKNOWN
        case str():
            return value
        case int():
            return f"{value:,}"
    return number(value)


def draw_svg(chart: Chart, key: str) -> str:
    """Draw a chart as an SVG element to be put into a page.

    Args:
        key: prefix of the element's ids, unique in the page.
    """
    with style.context([STYLE, {"svg.hashsalt": key}]):
        figure = make_figure(WIDTH, WIDTH)
        chart.draw(figure)
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
