"""Command output: tables and facts for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import typer
from msgspec import Struct, structs
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.progress import Progress

    from synergai.profiles.dictionary import ProfileEntry


_MAX_WIDTH: Final = 1000
"""Columns of a table that is not written to a terminal."""
_MAX_WORD: Final = 40
"""Words up to this length, such as names of engines, are never broken."""
_SHORT: Final = 12
"""Cells up to this length, such as ``0.119 ms``, are never folded."""
_GAP: Final = 2
"""Spaces between two columns."""
_WITH_ERROR: Final = re.compile(r"\S+ ± \S+")
"""A figure and its error, which are not folded between the two."""


def to_jsonable(value: object) -> Any:
    """Convert `value` for JSON: records to objects, enums to names, infinity to null."""
    match value:
        case enum.Enum():
            return value.name.lower()
        case datetime():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): to_jsonable(each) for key, each in value.items()}
        case list() | tuple():
            return [to_jsonable(each) for each in value]
        case Struct():
            return to_jsonable(structs.asdict(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields}
    return value


def print_json(value: object) -> None:
    typer.echo(json.dumps(to_jsonable(value), indent=2, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    optional: Sequence[str] = (),
) -> None:
    """Print a table; texts are not interpreted as markup.

    On a terminal, long texts are folded between words; names, figures and short cells stay whole.
    If the terminal is too narrow for that, optional columns are left out, the first one first,
    which a line below says. Files and pipes get full-width lines.
    """
    cells = [[_to_cell(value) for value in row] for row in rows]
    console = Console()
    widths = [
        _least_width(column, [row[number] for row in cells], whole=number == 0)
        for number, column in enumerate(columns)
    ]
    shown, left_out = list(range(len(columns))), list[str]()
    for column in optional:
        least = sum(widths[number] + _GAP for number in shown) - _GAP
        if not console.is_terminal or least <= console.width:
            break
        if column in columns:
            shown.remove(columns.index(column))
            left_out.append(column)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    room = console.width - _GAP * (len(shown) - 1)
    widest = _largest_width(cells, widths, shown, room) if console.is_terminal else _MAX_WIDTH
    for number in shown:
        table.add_column(
            columns[number],
            overflow="fold",
            no_wrap=number == 0,
            min_width=widths[number],
            max_width=max(widest, widths[number]),
        )
    for row in cells:
        table.add_row(*(row[number] for number in shown))
    if not console.is_terminal:
        options = console.options.update(max_width=_MAX_WIDTH)
        console.width = max(console.width, Measurement.get(console, options, table).maximum)
        _print_unpadded(console, table)
        return
    # The terminal wraps lines that are too long, so that nothing is lost.
    console.width = max(console.width, sum(widths[number] + _GAP for number in shown) - _GAP)
    console.print(table)
    if left_out:
        typer.echo(f"not shown, as the terminal is narrow: {', '.join(left_out)} (see --json)")


def _largest_width(
    cells: Sequence[Sequence[Text]], least: Sequence[int], shown: Sequence[int], room: int
) -> int:
    """Return the largest width of columns at which those shown fit into a line.

    Rich narrows the widest columns first, even below their least widths, which it then restores.
    """
    whole = {
        number: max(
            [
                least[number],
                *(cell_len(line) for row in cells for line in row[number].plain.split("\n")),
            ]
        )
        for number in shown
    }
    for width in range(room, 0, -1):
        if sum(max(least[number], min(whole[number], width)) for number in shown) <= room:
            return width
    return 0


def _least_width(column: str, cells: Sequence[Text], *, whole: bool) -> int:
    """Return the width in which no name, figure or short cell is broken."""
    lines = [line for cell in cells if not cell.no_wrap for line in cell.plain.split("\n")]
    if whole:
        return max(map(cell_len, [column, *lines]))
    words = [column, *(word for line in lines for word in line.split())]
    short = [line for line in lines if cell_len(line) <= _SHORT]
    figures = _WITH_ERROR.findall("\n".join(lines))
    longest = max(min(cell_len(word), _MAX_WORD) for word in words)
    return max(longest, *map(cell_len, (*short, *figures)), 0)


def _print_unpadded(console: Console, table: Table) -> None:
    """Print a table without the spaces that pad its last column, for programs that read it."""
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    typer.echo("\n".join(line.rstrip() for line in lines))


def print_facts(facts: Iterable[tuple[str, str | Text]]) -> None:
    """Print name and value pairs, one per line."""
    table = Table(show_header=False, box=None)
    for name, value in facts:
        table.add_row(Text(name, "dim"), _to_cell(value))
    Console().print(table)


def _to_cell(value: str | Text) -> Text:
    """Replace control characters, which a terminal would interpret."""
    cell = value if isinstance(value, Text) else Text(value)
    cell.plain = "\n".join(map(printable, cell.plain.split("\n")))
    return cell


def cut_text(text: str, style: str) -> Text:
    """Return a text for a table that is cut at the column's width instead of being folded."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def format_percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def format_accuracy(entry: ProfileEntry) -> str:
    """Format the accuracy of a dictionary entry with its standard error; empty if not measured."""
    if not entry.accuracy_samples:
        return ""
    return f"{entry.accuracy:.2%} ± {entry.accuracy_error:.2%}"


def format_seconds(value: float | None) -> str:
    """Format a duration with three significant digits; empty for None and infinity.

    Durations of 1000 s and more are in minutes, hours or days.
    """
    if value is None or not math.isfinite(value):
        return ""
    if abs(value) < 0.1:
        return f"{value * 1e3:.3g} ms"
    for unit, size, least in (("d", 86_400, 172_800.0), ("h", 3_600, 7_200.0), ("min", 60, 999.5)):
        if abs(value) >= least:
            scaled = value / size
            return f"{scaled:.3g} {unit}" if abs(scaled) < 999.5 else f"{scaled:,.0f} {unit}"
    return f"{value:.3g} s"


def format_age(instant: str, now: datetime) -> str:
    """Format the time since an ISO 8601 instant, as in 3 min or 12 d; empty if it is unknown."""
    try:
        then = datetime.fromisoformat(instant)
    except ValueError:
        return ""
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = max(0.0, (now - then).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_rate(per_second: float) -> str:
    """Format a rate with at least three significant digits."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def format_watts(value: float) -> str:
    """Format power in W; empty if it was not measured."""
    return f"{value:.3g} W" if value > 0 else ""


def format_joules(value: float) -> str:
    """Format energy in J, mJ or µJ; empty if it was not measured."""
    for unit, size in (("J", 1.0), ("mJ", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µJ" if value > 0 else ""


def count_progress() -> Progress:
    """Return a bar that counts completed items."""
    # Imported here to keep commands without a bar fast.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    class CountProgress(Progress):
        def stop(self) -> None:
            # In a file, `Progress` ends its last line even if it has printed none.
            if self.tasks or self.console.is_interactive:
                super().stop()
            else:
                self.live.stop()

    return CountProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
