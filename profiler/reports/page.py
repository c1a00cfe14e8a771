"""A report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from profiler.reports.document import Answer, Figure, Note, Table
from profiler.reports.wording import UNKNOWN, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from profiler.reports.charts import Chart
    from profiler.reports.document import Block, Report, Section

STYLE: Final = "page.css"
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|ms|s|min|h|QPS|MHz|W|J)(?!\w))")
"""The space between a number and its unit."""
_MANY: Final = 4
"""Panels in two columns that fit a printed page."""
_NARROW: Final = 4
"""Columns of a table that fit the width of a phone."""


def render(report: Report, draw: Callable[[Chart, str], str]) -> str:
    """Return the page."""
    style = files("profiler.reports").joinpath(STYLE).read_text("utf-8")
    body = "".join(_section(section, draw) for section in report.sections)
    contents = "".join(
        f'<li><a href="#{section.key}">{escape(section.title)}</a></li>'
        for section in report.sections
    )
    facts = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in report.facts)
    banner = f'<p class="banner">{escape(report.banner)}</p>' if report.banner else ""
    findings = "".join(map(_answer, report.findings))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="kicker">SynergAI</p>
<h1>{escape(report.title)}</h1>
<p class="lead">{escape(report.summary)}</p>
<dl class="facts">{facts}</dl>
{banner}
</header>
<main>
<section id="findings" class="findings">
<h2>Findings</h2>
{findings}
</section>
<nav aria-label="Contents"><h2>Contents</h2><ul>{contents}</ul></nav>
{body}</main>
<footer><p>{escape(report.colophon)}</p></footer>
</body>
</html>
"""


def _prose(text: str) -> str:
    """Escape a text, and keep numbers and their units on one line."""
    return _UNIT.sub("&nbsp;", escape(text))


def _section(section: Section, draw: Callable[[Chart, str], str]) -> str:
    blocks = "\n".join(_block(block, draw) for block in section.blocks)
    return f'<section id="{section.key}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>\n'


def _block(block: Block, draw: Callable[[Chart, str], str]) -> str:
    match block:
        case Note():
            return f'<p class="note">{_prose(block.text)}</p>'
        case Table():
            return _table(block)
        case Figure():
            return _figure(block, draw)


def _answer(answer: Answer) -> str:
    return (
        f'<div class="answer"><h3>{escape(answer.question)}</h3><p>{_prose(answer.text)}</p></div>'
    )


def _figure(figure: Figure, draw: Callable[[Chart, str], str]) -> str:
    panels = "".join(
        f'<div class="panel">{draw(chart, f"{figure.key}-{place}")}</div>'
        for place, chart in enumerate(figure.panels, 1)
    )
    columns = min(figure.columns, len(figure.panels))
    many = " many" if len(figure.panels) > _MANY else ""
    return (
        f'<figure id="{figure.key}">\n'
        f'<div class="panels columns-{columns}{many}">{panels}</div>\n'
        f"<figcaption><strong>{escape(figure.title)}</strong> {_prose(figure.caption)}"
        "</figcaption>\n</figure>"
    )


def _table(table: Table) -> str:
    numeric = [
        all(isinstance(row[place], int | float | None) for row in table.rows)
        for place in range(len(table.columns))
    ]
    head = "".join(
        f'<th scope="col"{_aligned(is_number)}>{escape(column)}</th>'
        for column, is_number in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_aligned(is_number)}>{escape(_cell(value))}</td>"
            for value, is_number in zip(row, numeric, strict=True)
        )
        + "</tr>\n"
        for row in table.rows
    )
    width = ' class="wide"' if len(table.columns) > _NARROW else ""
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    return (
        f'<div class="table" tabindex="0"><table{width}>{caption}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}</tbody></table></div>"
    )


def _aligned(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _cell(value: str | float | int | None) -> str:
    match value:
        case None:
            return UNKNOWN
        case str():
            return value
        case int():
            return f"{value:,}"
    return number(value)
