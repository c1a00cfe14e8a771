"""A report as a sequence of sections, independent of the format in which it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from profiler.reports.charts import Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        caption: what it shows; may be empty.
        file: stem of the CSV file that has it; empty if it is not written.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    caption: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of one or more panels.

    Attributes:
        key: stem of its files, unique in the report.
        title: what it shows, with the thesis's number of the figure where it has one.
        caption: description in whole sentences.
        panels: the charts, by row.
        columns: most panels in a row.
        data: the values that it shows, written as CSV.
    """

    key: str
    title: str
    caption: str
    panels: tuple[Chart, ...]
    columns: int
    data: Table


@dataclass(frozen=True, slots=True)
class Note:
    """A remark that is set apart, such as a warning."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and its answer."""

    question: str
    text: str


Block: TypeAlias = Note | Figure | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report.

    Attributes:
        key: its anchor, unique in the report.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]

    def reconstructed(self) -> Section:
        """Return the section with "Reconstructed." before every caption."""
        blocks = (
            block
            if isinstance(block, Note)
            else replace(block, caption=f"Reconstructed. {block.caption}".rstrip())
            for block in self.blocks
        )
        return replace(self, blocks=tuple(blocks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report.

    Attributes:
        facts: names and values of what it is made of.
        banner: a warning at the top that concerns all of it; may be empty.
    """

    title: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    banner: str
    findings: tuple[Answer, ...]
    sections: tuple[Section, ...]
    colophon: str

    def figures(self) -> list[Figure]:
        """Return all figures in order."""
        return [b for section in self.sections for b in section.blocks if isinstance(b, Figure)]

    def tables(self) -> list[Table]:
        """Return all tables that are written as CSV: of figures, and with a file."""
        tables = []
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Figure):
                    tables.append(block.data)
                elif isinstance(block, Table) and block.file:
                    tables.append(block)
        return tables
