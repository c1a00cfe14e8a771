"""Results as Markdown, which reads as well in a terminal; and their place in the documentation."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.interleaving import Measured

BUSY = 0.5
"""A load average from which on others are measured as well."""
VERSIONS = ("grpcio", "protobuf", "uvloop", "onnxruntime", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A sentence with a figure in it.

    Attributes:
        text: what is compared with what.
        value: the figure; None if a part of it could not be measured.
        unit: written behind the figure.
        at_most: what it may be at most, if anything was asked.
        at_least: what it has to be at least, if anything was asked.
    """

    text: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    def cells(self) -> list[str]:
        """Text, figure, what was asked, and whether it is reached."""
        measured = "not measured" if self.value is None else f"{self.value:.3f}{self.unit}"
        if self.at_most is not None:
            asked, limit = f"≤ {self.at_most:g}{self.unit}", self.at_most
            reached = self.value is not None and self.value <= limit
        elif self.at_least is not None:
            asked, limit = f"≥ {self.at_least:g}{self.unit}", self.at_least
            reached = self.value is not None and self.value >= limit
        else:
            return [self.text, measured, "", ""]
        return [self.text, measured, asked, "yes" if reached else "**no**"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of figures, and the comparisons that follow from it."""

    title: str
    note: str
    rows: Sequence[str]
    columns: Sequence[str]
    measured: Measured
    comparisons: Sequence[Comparison]

    def markdown(self) -> str:
        """Heading, note and tables."""
        figures = [
            [row, *(self._cell(row, column) for column in self.columns)] for row in self.rows
        ]
        parts = [f"### {self.title}", self.note, table(["", *self.columns], figures)]
        if self.comparisons:
            compared = [comparison.cells() for comparison in self.comparisons]
            parts.append(table(["", "measured", "asked", "reached"], compared))
        return "\n\n".join(parts)

    def _cell(self, row: str, column: str) -> str:
        figure = self.measured.figure((row, column))
        if figure is None:
            return "-"
        per_second = f"{figure.per_second:,.{0 if figure.per_second >= 1000 else 1}f}/s"
        return f"{figure.median_ms:.3f} ms, {per_second}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned for the eye as well."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join(
        [line(header), f"|{'|'.join('-' * (w + 2) for w in widths)}|", *map(line, rows)]
    )


def machine() -> str:
    """What the figures are taken on, and how idle it is; on a busy one, a warning is printed."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"the machine is busy (load average {load:.2f}): the figures will be noise")
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{os.cpu_count()} processors ({models[0] if models else platform.machine()}), "
        f"{memory_gib:.0f} GiB, Linux {platform.release()}; "
        f"load average before the run {load:.2f}"
    )


def preamble(command: str, machine: str) -> str:
    """When, how, where and with what."""
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"Taken {datetime.datetime.now(datetime.UTC):%Y-%m-%d} with `{command}` on {machine}; "
        f"Python {platform.python_version()}, {versions}."
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a document a result goes: between two marks, in place of the one before.

    Raises:
        InvalidInput: there is no such document, or it does not have both marks.
    """

    document: Path
    block: str

    def __post_init__(self) -> None:
        self._parts()  # minutes of measuring go before the writing

    def write(self, text: str) -> None:
        """Put `text` there.

        Raises:
            InvalidInput: the marks are there no more.
        """
        before, after = self._parts()
        self.document.write_text(f"{before}\n{text}\n\n{after}")

    def _parts(self) -> tuple[str, str]:
        """What stays, marks included, before and after."""
        begin, end = f"<!-- {self.block}: begin -->\n", f"<!-- {self.block}: end -->"
        try:
            before, found, rest = self.document.read_text().partition(begin)
        except OSError as error:
            raise InvalidInput(f"{self.document} cannot be read: {error.strerror}") from None
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise InvalidInput(f"{self.document} lacks the marks {begin.strip()!r} and {end!r}")
        return f"{before}{begin}", f"{end}{after}"
