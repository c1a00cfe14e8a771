"""Files whose rows are inputs: arrays (.npy), Parquet and text.

Every reader is a context manager with the number of inputs in its file, and yields them lazily.

The columns of a CSV file, or the keys of the lines of a JSON-lines file, are called like the
engine's inputs. For an engine with a single input of numbers, a line may have its values alone: the
cells of CSV, or a JSON number or list.
"""

from __future__ import annotations

import csv
import json
import math
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
from numpy.lib import format as npy_format

from synergai.data.columns import as_array, check_unique, count_rows
from synergai.data.items import Unusable
from synergai.errors import InvalidInput
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from numpy.typing import NDArray

    from synergai.data.columns import Row
    from synergai.domain import Engine, TensorSpec


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


TEXT_SUFFIXES: Final = frozenset((".csv", ".jsonl"))


def _is_header(row: Sequence[str]) -> bool:
    """Return whether a row names columns; raise `InvalidInput` if it has numbers and others."""
    numbers = [isinstance(parse_cell(cell), int | float) for cell in row]
    if any(numbers) and not all(numbers):
        raise InvalidInput(
            f"its first row, {','.join(row)[:80]!r}, is in doubt: it has numbers, like an input, "
            "and others, like a header"
        )
    return not any(numbers)


class TextRows:
    """Rows of a CSV or JSON-lines file.

    Raises:
        InvalidInput: its text is not UTF-8, a row has no end, its first line has no values for the
            engine, or it is in doubt whether that is an input.
    """

    single = False

    def __init__(self, path: str, engine: Engine) -> None:
        self._path = path
        self._engine = engine.name
        self._specs = engine.inputs
        takes_numbers = not engine.preprocess and engine.inputs[0].datatype != "BYTES"
        self._takes_numbers_alone = takes_numbers and len(engine.inputs) == 1
        self.count = sum(1 for _ in self.rows())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rows(self, start: int = 0) -> Iterator[Row | Unusable]:
        """Yield the inputs from `start` on. A value that is none is left to the engine's check."""
        lines = read_lines(self._path)
        is_json = Path(self._path).suffix.lower() == ".jsonl"
        return islice(self._json(lines) if is_json else self._csv(lines), start, None)

    def _csv(self, lines: Iterable[str]) -> Iterator[Row | Unusable]:
        rows = read_csv(lines)
        begin = list(islice(rows, 1))
        names = [cell.strip() for _, row in begin for cell in row]
        columns: dict[TensorSpec, int] = {}
        if all(spec.name in names for spec in self._specs):
            check_unique(names, self._specs)
            columns = {spec: names.index(spec.name) for spec in self._specs}
        elif begin and not self._takes_numbers_alone:
            raise self._unsuitable(",".join(names))
        has_header = columns or (begin and _is_header(names))
        for number, row in rows if has_header else chain(begin, rows):
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
        if isinstance(value, dict):
            return all(spec.name in value for spec in self._specs)
        return self._takes_numbers_alone and isinstance(value, list | int | float)

    def _unsuitable(self, first: str) -> InvalidInput:
        names = ", ".join(repr(spec.name) for spec in self._specs)
        numbers = ", or numbers alone" if self._takes_numbers_alone else ""
        return InvalidInput(
            f"its first line, {first[:80]!r}, has no values: rows for engine {self._engine!r} have "
            f"{names}{numbers}"
        )


def _cell(cell: str, spec: TensorSpec) -> Any:
    return cell if spec.datatype == "BYTES" else _shaped(parse_cell(cell), spec)


def _shaped(value: Any, spec: TensorSpec) -> Any:
    """Return a flat list of numbers in the input's shape; any other value unchanged."""
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return as_array(value, spec)
    return value


ROW_SUFFIXES: Final = frozenset((".npy", ".parquet"))
_CHUNK_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 10_000
_MAX_INPUT_BYTES: Final = 1 << 30
"""No message is larger. The header of a damaged or hostile file may tell any size."""
_STRUCTURED: Final = "it is a structured array; save its columns as one array of numbers"
_HEADER_READERS: Final = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


class RowFile(Protocol):
    """An open file of inputs.

    Attributes:
        single: whether the whole file is one input, and not the first of several rows.
    """

    count: int
    single: bool

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def rows(self, start: int = 0) -> Iterator[Row | Unusable]:
        """Yield the inputs from `start` on."""
        ...


def open_rows(path: str, engine: Engine) -> RowFile:
    if Path(path).suffix.lower() in TEXT_SUFFIXES:
        return TextRows(path, engine)
    if Path(path).suffix.lower() == ".parquet":
        from synergai.data.parquet import ParquetRows

        return ParquetRows(Path(path).open("rb"), engine)
    return ArrayRows(Path(path).open("rb"), engine)


class ArrayRows:
    """Rows of an array.

    Args:
        file: the file, which this object closes.

    Attributes:
        single: whether the array is one input, without a dimension of rows.
    """

    def __init__(self, file: IO[bytes], engine: Engine) -> None:
        with ExitStack() as stack:
            stack.enter_context(file)
            if len(engine.inputs) != 1:
                names = ", ".join(spec.name for spec in engine.inputs)
                raise InvalidInput(
                    f"engine {engine.name!r} has several inputs: put them into the columns {names} "
                    "of a .parquet file"
                )
            self._name = engine.inputs[0].name
            self._stream = ArrayStream(file)
            rows = count_rows({self._name: self._stream.shape}, engine)
            self.single = rows is None
            self.count = 1 if rows is None else rows
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the inputs from `start` on."""
        if not self.single:
            yield from ({self._name: row} for row in self._stream.rows(start))
        elif start == 0:
            yield {self._name: self._stream.read_all()}


class ArrayStream:
    """An array in a file; the file stays the caller's."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            read_header = _HEADER_READERS[npy_format.read_magic(file)]
            shape, fortran, dtype = read_header(file, max_header_size=_MAX_HEADER_BYTES)
        except (ValueError, KeyError) as error:
            if "max_header_size" in str(error):  # names and types of many columns
                raise InvalidInput(_STRUCTURED) from None
            raise InvalidInput(f"it is not an array in NumPy's format: {error}") from None
        if dtype.names is not None:
            raise InvalidInput(_STRUCTURED)
        if dtype.hasobject:
            raise InvalidInput("it has Python objects, which are not read; save an array of texts")
        if fortran and len(shape) > 1:
            raise InvalidInput(
                "it is in Fortran order and has no rows; save it with np.ascontiguousarray"
            )
        if min(shape, default=0) < 0:
            raise InvalidInput(f"it is not an array in NumPy's format: its shape is {shape}")
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = dtype
        self._file = file
        self._begin = file.tell()

    def read_all(self) -> NDArray[Any]:
        self._file.seek(self._begin)
        return self._read(self.shape)

    def rows(self, start: int = 0) -> Iterator[NDArray[Any]]:
        """Yield the rows from `start` on, as views of chunks."""
        total, row_shape = self.shape[0], self.shape[1:]
        row_bytes = math.prod(row_shape) * self.dtype.itemsize
        per_chunk = max(1, min(_CHUNK_BYTES // max(1, row_bytes), total))
        self._file.seek(self._begin + start * row_bytes)
        while start < total:
            count = min(per_chunk, total - start)
            yield from self._read((count, *row_shape))
            start += count

    def _read(self, shape: tuple[int, ...]) -> NDArray[Any]:
        size = math.prod(shape) * self.dtype.itemsize
        if size > _MAX_INPUT_BYTES:
            raise InvalidInput(f"an input of {size:,} bytes is larger than any message may be")
        data = self._file.read(size)
        if len(data) != size:
            raise InvalidInput("the file ends before its array does")
        return np.frombuffer(data, self.dtype).reshape(shape)
