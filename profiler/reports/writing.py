"""A report in a folder: the page, and its figures and tables as PNG and CSV files."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from profiler.reports.drawing import draw_svg, write_png
from profiler.reports.page import render
from synergai.errors import InvalidInput
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from profiler.reports.document import Report, Table

PAGE: Final = "report.html"


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write a report, replacing files of the same names.

    Returns:
        The files written, the page first.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [_write(folder / PAGE, render(report, draw_svg))]
        paths += [write_png(each, folder / f"{each.key}.png") for each in report.figures()]
        paths += [_write(folder / f"{each.file}.csv", to_csv(each)) for each in report.tables()]
    except OSError as error:
        raise InvalidInput(f"cannot write the report to {folder}: {error.strerror}") from error
    return paths


def to_csv(table: Table) -> str:
    """Return a table as CSV; unknown values are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return text.getvalue()


def _write(path: Path, text: str) -> Path:
    write_atomic(path, text)
    return path
