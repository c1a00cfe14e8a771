"""A report in a folder: one HTML page, and its figures and tables as PNG and CSV files.

The page needs nothing else: no script, no font, no network.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import style

from profiler.reports.drawing import MAX_HEIGHT, STYLE, WIDTH, make_figure, save
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

PAGE: Final = "report.html"
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|ms|s|min|h|QPS|MHz|W|J)(?!\w))")
"""The space between a number and its unit."""
_ID: Final = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE: Final = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows.
        file: stem of the CSV file that has it.
    """

    rows: Records
    caption: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of one or more panels.

    Attributes:
        key: stem of its files, unique in the report.
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

    @property
    def data(self) -> Records:
        """The values that it shows, written as CSV."""
        return [
            {"panel": panel.title, "row": row, "series": series, "value": value}
            for panel in self.panels
            for row, series, value in panel.values()
        ]


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

    def figures(self) -> list[Figure]:
        """Return all figures in order."""
        return [b for section in self.sections for b in section.blocks if isinstance(b, Figure)]

    def tables(self) -> dict[str, Records]:
        """Return the rows of all tables and figures by the stem of their CSV file."""
        tables = {}
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Figure):
                    tables[block.key] = block.data
                elif isinstance(block, Table):
                    tables[block.file] = block.rows
        return tables


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write a report, replacing files of the same names.

    Returns:
        The files written, the page first.
    """
    texts = {PAGE: render(report)}
    texts |= {f"{name}.csv": to_csv(rows) for name, rows in report.tables().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomic(folder / name, text)
        images = [
            write_png(figure.panels, figure.columns, folder / f"{figure.key}.png")
            for figure in report.figures()
        ]
    except OSError as error:
        raise InvalidInput(f"cannot write the report to {folder}: {error.strerror}") from error
    page, *tables = (folder / name for name in texts)
    return [page, *images, *tables]


def render(report: Report) -> str:
    """Return the page."""
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


def to_csv(rows: Records) -> str:
    """Return a table as CSV; unknown values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(["" if cell is None else cell for cell in row.values()] for row in rows)
    return text.getvalue()


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
        figure = make_figure(WIDTH, chart.height)
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


def write_png(panels: Sequence[Chart], columns: int, path: Path) -> Path:
    """Draw charts into one PNG file, so many in a row."""
    with style.context(STYLE):
        columns = min(columns, len(panels))
        rows = [panels[at : at + columns] for at in range(0, len(panels), columns)]
        heights = [max(chart.height for chart in row) for row in rows]
        canvas = make_figure(WIDTH * columns, min(sum(heights), MAX_HEIGHT))
        parts = canvas.subfigures(len(rows), columns, squeeze=False, height_ratios=heights)
        for row, places in zip(rows, parts, strict=True):
            for chart, place in zip(row, places, strict=False):
                chart.draw(place)
        return save(canvas, path)
