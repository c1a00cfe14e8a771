"""Text files: lines, rows of CSV and values of JSON lines, in the encoding that is given."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.data.items import Unusable
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# A cell may be a whole input, and no message is larger. The limit is the process's.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))

_BYTE_ORDER_MARK: Final = "\ufeff"


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How CSV, JSON-lines and manifest files are read.

    Attributes:
        encoding: encoding of the text.
        header: whether the first row of CSV names the columns. None: it does if it names the
            inputs of the engine; a file in doubt is refused.

    Raises:
        InvalidInput: there is no such encoding.
    """

    encoding: str = "utf-8"
    header: bool | None = None

    def __post_init__(self) -> None:
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding)
        except (LookupError, ValueError):
            raise InvalidInput(
                f"there is no text encoding {self.encoding!r}; write one such as latin-1 or utf-16"
            ) from None


DEFAULT_TEXT: Final = TextFormat()


def read_lines(path: str, encoding: str, *, errors: str = "strict") -> Iterator[str]:
    """Yield the lines of a file with their ends.

    Raises:
        InvalidInput: the text is not of this encoding.
    """
    with Path(path).open("rb") as file:
        lines = io.TextIOWrapper(file, encoding, errors, newline="")
        try:
            yield next(lines, "").removeprefix(_BYTE_ORDER_MARK)
            yield from lines
        except UnicodeError:
            raise InvalidInput(
                f"{_find_undecodable(path, encoding)} is not {encoding} text; name the encoding "
                "with --encoding, such as latin-1 or utf-16"
            ) from None


def _find_undecodable(path: str, encoding: str) -> str:
    """Return where the text is not of this encoding: the line, and the first such byte."""
    decoder = codecs.getincrementaldecoder(encoding)()
    begin, number = 0, 1
    with Path(path).open("rb") as file:
        for data in chain(file, (b"",)):
            kept = len(decoder.getstate()[0])  # bytes of the line before
            try:
                number += decoder.decode(data, final=not data).count("\n")
            except UnicodeDecodeError as error:
                offset = begin - kept + error.start
                byte = error.object[error.start]
                return f"line {number}: byte 0x{byte:02X} at offset {offset:,}"
            except UnicodeError:  # of no byte, such as UTF-16 without a byte order mark
                return f"line {number}"
            begin += len(data)
    return "a byte"  # the file has changed


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
