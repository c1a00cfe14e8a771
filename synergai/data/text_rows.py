"""Rows of values in CSV and JSON-lines files.

The columns of a CSV file, or the keys of the lines of a JSON-lines file, are called like the
engine's inputs. For an engine with a single input, a line may have its values alone: the cells of
CSV, with or without a header, or a JSON number or list. A file that lists others is a manifest.
"""

from __future__ import annotations

import csv
import io
import json
import os
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import numpy as np

from synergai.data.columns import in_shape
from synergai.data.files import suffix_of
from synergai.data.manifests import PATH_KEYS, resolve
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.data.columns import Row
    from synergai.domain import Engine, TensorSpec

TEXT_SUFFIXES: Final = frozenset((".csv", ".jsonl"))


def has_values(path: str, engine: Engine, *, takes_files: bool) -> bool:
    """Return whether a file has rows of values, by its first lines; otherwise it is a manifest.

    Args:
        takes_files: whether the engine takes encoded files; a number may then be one's name.
    """
    names = [spec.name for spec in engine.inputs]
    alone = len(names) == 1 and not takes_files
    with _open(path) as lines:
        if suffix_of(path) == ".jsonl":
            first = next(filter(str.strip, lines), "").strip()
            value = _parse(first)
            values = isinstance(value, list | int | float)
            keys: Sequence[str] = list(value) if isinstance(value, dict) else ()
            listed = isinstance(value, str)
        else:
            try:
                rows = list(islice(filter(None, csv.reader(lines)), 2))
            except csv.Error:
                return False
            first = ",".join(rows[0]) if rows else ""
            values = any(map(_is_number, rows))
            keys = _header(rows)
            listed = not rows or any(_exists(row[0], path) for row in rows)
    if set(names) <= set(keys):
        return True
    if set(PATH_KEYS) & set(map(str.lower, keys)):
        return False
    if values and alone:
        return True
    if not listed:
        numbers = ", or numbers alone" if alone else ""
        raise InvalidInput(
            f"{path}: its first line, {first[:80]!r}, has neither a path nor values; a list of "
            f"files has a column 'path', and rows for engine {engine.name!r} have the columns "
            f"{', '.join(map(repr, names))}{numbers}"
        )
    return False


def _exists(listed: str, manifest: str) -> bool:
    return os.path.lexists(resolve(listed.strip(), manifest))


class TextRows:
    """Rows of a CSV or JSON-lines file."""

    single = False

    def __init__(self, path: str, engine: Engine) -> None:
        self._path = path
        self._specs = engine.inputs
        self.count = sum(1 for _ in self.rows())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the inputs from `start` on. A value that is none is left to the engine's check."""
        with _open(self._path) as lines:
            is_json = suffix_of(self._path) == ".jsonl"
            yield from islice(self._json(lines) if is_json else self._csv(lines), start, None)

    def _csv(self, lines: IO[str]) -> Iterator[Row]:
        rows = filter(None, csv.reader(lines))
        first = next(rows, [])
        header = _header([first])
        if all(spec.name in header for spec in self._specs):
            columns = {spec: header.index(spec.name) for spec in self._specs}
            for row in rows:
                cells = {spec: row[at] if at < len(row) else None for spec, at in columns.items()}
                yield {spec.name: _cell(cell, spec) for spec, cell in cells.items()}
            return
        [spec] = self._specs
        if _is_number(first):
            yield {spec.name: _values(first, spec)}
        for row in rows:
            yield {spec.name: _values(row, spec)}

    def _json(self, lines: IO[str]) -> Iterator[Row]:
        for line in filter(str.strip, lines):
            value = _parse(line)
            cells = value if isinstance(value, dict) else {self._specs[0].name: value}
            yield {spec.name: _shaped(cells.get(spec.name), spec) for spec in self._specs}


def _open(path: str) -> IO[str]:
    return io.TextIOWrapper(
        Path(path).open("rb"), encoding="utf-8-sig", errors="replace", newline=""
    )


def _header(rows: Sequence[Sequence[str]]) -> list[str]:
    return [cell.strip() for cell in rows[0]] if rows else []


def _parse(text: str) -> Any:
    """Return the value of a JSON text or number; the text if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return float(text)
        except ValueError:
            return text.strip()


def _is_number(row: Sequence[str]) -> bool:
    return bool(row) and all(isinstance(_parse(cell), int | float) for cell in row)


def _cell(cell: str | None, spec: TensorSpec) -> Any:
    return cell if cell is None or spec.datatype == "BYTES" else _shaped(_parse(cell), spec)


def _values(row: Sequence[str], spec: TensorSpec) -> Any:
    return _shaped([_parse(cell) for cell in row], spec)


def _shaped(value: Any, spec: TensorSpec) -> Any:
    """Return a flat list of numbers in the input's shape; any other value unchanged."""
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return in_shape(np.asarray(value), spec)
    return value
