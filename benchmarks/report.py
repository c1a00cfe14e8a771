"""Reports in Markdown, and the blocks of documents that hold them."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.interleaving import Measurements

BUSY = 0.5
"""Load average above which a warning is printed."""
VERSIONS = ("grpcio", "uvloop", "onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A derived figure and its target.

    Attributes:
        text: description.
        value: the figure; None if it could not be measured.
        unit: unit, appended to the figure.
        at_most: upper target, if any.
        at_least: lower target, if any.
    """

    text: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def has_target(self) -> bool:
        """Whether the figure is judged."""
        return self.at_most is not None or self.at_least is not None

    def cells(self) -> list[str]:
        """Return description, figure and target; a figure that misses its target is bold."""
        measured = "not measured" if self.value is None else f"{self.value:.3f}{self.unit}"
        if self.at_most is not None:
            target = f"≤ {self.at_most:g}{self.unit}"
            met = self.value is not None and self.value <= self.at_most
        elif self.at_least is not None:
            target = f"≥ {self.at_least:g}{self.unit}"
            met = self.value is not None and self.value >= self.at_least
        else:
            return [self.text, measured, ""]
        return [self.text, measured if met else f"**{measured}**", target]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table of figures and the comparisons derived from it, listed or as further tables."""

    title: str
    note: str
    rows: Sequence[str]
    columns: Sequence[str]
    measured: Measurements
    comparisons: Sequence[Comparison] = ()
    tables: Sequence[str] = ()

    def markdown(self) -> str:
        """Return heading, note and tables."""
        figures = [
            [row, *(self._cell(row, column) for column in self.columns)] for row in self.rows
        ]
        parts = [f"### {self.title}", self.note, table(["", *self.columns], figures)]
        if self.comparisons:
            compared = [comparison.cells() for comparison in self.comparisons]
            parts.append(table(["", "measured", "target"], compared))
        parts += self.tables
        return "\n\n".join(parts)

    def summary(self) -> str:
        """Return heading, note and what is compared; without targets, the figures as well.

        Comparisons without a target follow from figures, so that they are left out.
        """
        judged = [each.cells() for each in self.comparisons if each.has_target]
        if not judged and not self.tables:
            return replace(self, comparisons=()).markdown()
        parts = [f"### {self.title}", self.note]
        if judged:
            parts.append(table(["", "measured", "target"], judged))
        return "\n\n".join([*parts, *self.tables])

    def _cell(self, row: str, column: str) -> str:
        figure = self.measured.figure((row, column))
        if figure is None:
            return "-"
        per_second = f"{figure.per_second:,.{0 if figure.per_second >= 1000 else 1}f}/s"
        return f"{figure.median_ms:.3f} ms, {per_second}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with padded columns."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join(
        [line(header), f"|{'|'.join('-' * (w + 2) for w in widths)}|", *map(line, rows)]
    )


def describe_machine() -> str:
    """Describe the machine and its load; print a warning if it is busy."""
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"warning: the machine is busy (load average {load:.2f}); figures will be unreliable")
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    kernel, _, _ = platform.release().partition("-")
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{os.cpu_count()} processors ({models[0] if models else platform.machine()}), "
        f"{memory_gib:.0f} GiB, Linux {kernel}; "
        f"load before {load:.2f}"
    )


def preamble(command: str, machine: str) -> str:
    """Describe date, command, machine and versions of a run."""
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"Taken {datetime.datetime.now(datetime.UTC):%Y-%m-%d} with `{command}` on {machine}; "
        f"Python {platform.python_version()}, {versions}."
    )


@dataclass(frozen=True, slots=True)
class DocumentBlock:
    """Part of a document between two marker comments, which a report replaces.

    Raises:
        InvalidInput: the document cannot be read or lacks a marker.
    """

    document: Path
    block: str

    def __post_init__(self) -> None:
        self._parts()  # fail before the measurement, which takes minutes

    def write(self, text: str) -> None:
        """Replace the content with `text`.

        Raises:
            InvalidInput: the document lacks a marker.
        """
        before, after = self._parts()
        self.document.write_text(f"{before}\n{text}\n\n{after}")

    def _parts(self) -> tuple[str, str]:
        """Return the text before and after the content, including the markers."""
        begin, end = f"<!-- {self.block}: begin -->\n", f"<!-- {self.block}: end -->"
        try:
            before, found, rest = self.document.read_text().partition(begin)
        except OSError as error:
            raise InvalidInput(f"cannot read {self.document}: {error.strerror}") from None
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise InvalidInput(f"{self.document} lacks the markers {begin.strip()!r} and {end!r}")
        return f"{before}{begin}", f"{end}{after}"
