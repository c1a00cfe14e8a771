"""Rows of values in CSV and JSON-lines files.

The columns of a CSV file, or the keys of the lines of a JSON-lines file, are called like the
engine's inputs. For an engine with a single input of numbers, a line may have its values alone: the
cells of CSV, or a JSON number or list.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from synergai.data.columns import as_array, check_unique
from synergai.data.files import suffix_of
from synergai.data.items import Unusable
from synergai.data.text_files import parse_cell, read_csv, read_json_lines, read_lines
from synergai.errors import InvalidInput
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from synergai.data.columns import Row
    from synergai.data.text_files import TextFormat
    from synergai.domain import Engine, TensorSpec

TEXT_SUFFIXES: Final = frozenset((".csv", ".jsonl"))
_MISSING: Final = frozenset(("na", "n/a", "none", "null"))
"""Texts that stand for a missing value, and name no column."""
_DECIDE: Final = (
    "say --header yes if it names the columns, or --header no if it is an input (in Python, "
    "text=synergai.TextFormat(header=...))"
)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row names columns; raise `InvalidInput` if it may be an input."""
    if _names_columns(rows):
        return True
    if _are_numbers(rows[0]) and (len(rows) == 1 or not _are_counted(rows[0])):
        return False
    raise InvalidInput(f"its first row, {','.join(rows[0])[:80]!r}, is in doubt: {_DECIDE}")


def _names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row cannot be an input: it has names, and the next one numbers."""
    names = _stripped(rows[0])
    return (
        len(rows) > 1
        and len(rows[1]) == len(names) == len(set(names))
        and all(map(_is_name, names))
        and _are_numbers(rows[1])
    )


def _is_name(cell: str) -> bool:
    is_word = cell[:1].isalpha() or cell[:1] == "_"
    return is_word and not _is_number(cell) and cell.lower() not in _MISSING


def _are_counted(row: Sequence[str]) -> bool:
    """Return whether numbers ascend in equal steps, like those of columns, years or bins."""
    numbers = [float(parse_cell(cell)) for cell in row]
    steps = np.diff(numbers)
    if len(numbers) < 3:
        return numbers[0] == 0 if not len(steps) else bool(steps[0] == 1)
    return bool(steps[0] > 0 and np.allclose(steps, steps[0]))


class TextRows:
    """Rows of a CSV or JSON-lines file.

    Raises:
        InvalidInput: its text is of another encoding, a row has no end, its first line has no
            values for the engine, or it is in doubt whether that is an input.
    """

    single = False

    def __init__(self, path: str, engine: Engine, text: TextFormat) -> None:
        self._path = path
        self._engine = engine.name
        self._specs = engine.inputs
        takes_numbers = not engine.preprocess and engine.inputs[0].datatype != "BYTES"
        self._takes_numbers_alone = takes_numbers and len(engine.inputs) == 1
        self._text = text
        self.count = sum(1 for _ in self.rows())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rows(self, start: int = 0) -> Iterator[Row | Unusable]:
        """Yield the inputs from `start` on. A value that is none is left to the engine's check."""
        lines = read_lines(self._path, self._text.encoding)
        is_json = suffix_of(self._path) == ".jsonl"
        return islice(self._json(lines) if is_json else self._csv(lines), start, None)

    def _csv(self, lines: Iterable[str]) -> Iterator[Row | Unusable]:
        rows = read_csv(lines)
        begin = list(islice(rows, 2))
        names, header = _stripped(begin[0][1] if begin else ()), self._text.header
        columns: dict[TensorSpec, int] = {}
        if header is not False and all(spec.name in names for spec in self._specs):
            check_unique(names, self._specs)
            columns = {spec: names.index(spec.name) for spec in self._specs}
        elif begin and not self._takes_numbers_alone:
            raise self._unsuitable(",".join(names))
        elif begin and header is None:
            header = _is_header([row for _, row in begin])
        for number, row in chain(begin[1:] if columns or header else begin, rows):
            if not columns:
                [spec] = self._specs
                yield {spec.name: _shaped([parse_cell(cell) for cell in row], spec)}
            elif len(row) == len(names):
                yield {spec.name: _cell(row[at], spec) for spec, at in columns.items()}
            else:
                cells = counted(len(row), "cell")
                yield Unusable(f"line {number}: it has {cells}, and the header has {len(names)}")

    def _json(self, lines: Iterable[str]) -> Iterator[Row | Unusable]:
        for position, (_, value) in enumerate(read_json_lines(lines)):
            if isinstance(value, Unusable):
                if position == 0:
                    raise InvalidInput(value.reason)
                yield value
                continue
            if position == 0 and not self._suits(value):
                raise self._unsuitable(str(value))
            cells = value if isinstance(value, dict) else {self._specs[0].name: value}
            yield {spec.name: _shaped(cells.get(spec.name), spec) for spec in self._specs}

    def _suits(self, value: object) -> bool:
        """Return whether a JSON value has the engine's inputs."""
        if isinstance(value, dict):
            return all(spec.name in value for spec in self._specs)
        return self._takes_numbers_alone and isinstance(value, list | int | float)

    def _unsuitable(self, first: str) -> InvalidInput:
        names = ", ".join(repr(spec.name) for spec in self._specs)
        numbers = ", or numbers alone" if self._takes_numbers_alone else ""
        return InvalidInput(
            f"its first line, {first[:80]!r}, has no values: rows for engine {self._engine!r} have "
            f"{names}{numbers}; a list of files is a .txt file with a path per line"
        )


def _stripped(row: Sequence[str]) -> list[str]:
    return [cell.strip() for cell in row]


def _is_number(cell: str) -> bool:
    return isinstance(parse_cell(cell), int | float)


def _are_numbers(row: Sequence[str]) -> bool:
    return all(map(_is_number, row))


def _cell(cell: str, spec: TensorSpec) -> Any:
    return cell if spec.datatype == "BYTES" else _shaped(parse_cell(cell), spec)


def _shaped(value: Any, spec: TensorSpec) -> Any:
    """Return a flat list of numbers in the input's shape; any other value unchanged."""
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return as_array(value, spec)
    return value
