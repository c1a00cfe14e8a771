"""Text files: lines, rows of CSV and values of JSON lines."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.data.items import Unusable
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A cell may be a whole input, and no message is larger. The limit is the process's.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))

_BYTE_ORDER_MARK: Final = "\ufeff"


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file with their ends.

    Raises:
        InvalidInput: the text is not UTF-8.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise InvalidInput(f"line {number}: byte 0x{byte:02X} is not UTF-8 text") from None
            yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def read_csv(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, with the numbers of their last lines."""
    rows = csv.reader(lines, strict=True)
    before = 0
    try:
        for row in rows:
            before = rows.line_num
            if row:
                yield before, row
    except csv.Error as error:
        raise InvalidInput(
            f"the row that begins in line {before + 1}: {error}; is a quote missing or not doubled?"
        ) from None


def read_json_lines(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield the values of the lines that are not empty, with their numbers.

    The value of a line that is not JSON is an `Unusable`.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value: Any
        try:
            value = _DECODER.decode(line)
        except RecursionError:
            value = Unusable(f"line {number}: it is not JSON: it is nested too deeply")
        except ValueError as error:
            reason = str(error).partition(";")[0]  # without advice to programmers
            value = Unusable(f"line {number}: it is not JSON: {reason}")
        yield number, value


def parse_cell(text: str) -> Any:
    """Return the value of a cell that is JSON or a number; its text if it is neither."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        try:
            return finite_float(text)
        except ValueError:
            return text.strip()


def finite_float(text: str) -> float:
    """Return a number; unlike `float`, none for one that is too large, or has underscores."""
    value = float(text)
    if "_" in text or (math.isinf(value) and any(map(str.isdigit, text))):
        raise ValueError(f"{text[:40]} is not a floating-point number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


_DECODER: Final = json.JSONDecoder(parse_float=finite_float, object_pairs_hook=_unique)
