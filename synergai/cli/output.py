"""What commands print: tables for people, JSON for programs, the same facts in both."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WIDEST: Final = 1000
"""Columns of a line in a file, at most."""
_WHOLE_WORD: Final = 9
"""Words of so many letters, ``succeeded`` or ``estimated``, are not broken."""


def plain(value: object) -> Any:
    """`value` as JSON knows it: dataclasses by field, enums by name, no number for infinity."""
    match value:
        case enum.Enum():
            return value.name.lower()
        case datetime():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    return value


def print_json(value: object) -> None:
    """Print `value` as JSON on standard output."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print a table; texts are shown as they are, for what a peer sent is no markup.

    On a terminal long texts are folded, but for the first column's, which people copy, and not
    within a short word; a file or a pipe has no width to keep to.
    """
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    cells = [[_cell(value) for value in row] for row in rows]
    for number, column in enumerate(columns):
        words = " ".join([column, *(row[number].plain for row in cells)]).split()
        longest = max((len(word) for word in words), default=0)
        table.add_column(
            column, overflow="fold", no_wrap=number == 0, min_width=min(longest, _WHOLE_WORD)
        )
    for row in cells:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        options = console.options.update(max_width=_WIDEST)
        console.width = max(console.width, Measurement.get(console, options, table).maximum)
    console.print(table)


def print_facts(facts: Iterable[tuple[str, str | Text]]) -> None:
    """Print facts about one thing, a line for each."""
    table = Table(show_header=False, box=None)
    for name, value in facts:
        table.add_row(Text(name, "dim"), _cell(value))
    Console().print(table)


def _cell(value: str | Text) -> Text:
    """A text as it is, but for what a terminal would obey."""
    cell = value if isinstance(value, Text) else Text(value)
    cell.plain = "\n".join(map(printable, cell.plain.split("\n")))
    return cell


def seconds(value: float | None) -> str:
    """Seconds for people: three digits that matter, nothing where there is no value."""
    if value is None or not math.isfinite(value):
        return ""
    return f"{value * 1e3:.3g} ms" if abs(value) < 0.1 else f"{value:.3g} s"


def rate(per_second: float) -> str:
    """A rate for people: three digits that matter at least."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def watts(value: float) -> str:
    """Power for people; nothing where it was not measured."""
    return f"{value:.3g} W" if value > 0 else ""


def joules(value: float) -> str:
    """Energy for people, in J, mJ or µJ; nothing where it was not measured."""
    for unit, size in (("J", 1.0), ("mJ", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µJ" if value > 0 else ""
