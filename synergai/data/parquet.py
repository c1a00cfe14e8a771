"""Parquet files whose rows are inputs, read by row group."""

from __future__ import annotations

import math
from decimal import Decimal
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Final, Self

import numpy as np

from synergai.data.columns import as_array, in_shape, inner_shape, is_integer, match_columns
from synergai.errors import InvalidInput, NotSupported
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.data.columns import Row
    from synergai.domain import Engine, TensorSpec


def import_arrow(module: str = "pyarrow") -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise NotSupported(
            f"Parquet files need pyarrow, which is not installed; {pip_install('data')}"
        ) from None


_BATCH_ROWS: Final = 1024
_BATCH_CELLS: Final = 1 << 18
"""Rows and cells decoded at a time; a row group may be the whole file."""


class ParquetRows:
    """Rows of a Parquet file, whose columns are the engine's inputs or the features of a wide one.

    A cell is a number, a text, an encoded file, or a list, nested or flat.

    Args:
        file: the file, which this object closes.
    """

    single = False

    def __init__(self, file: IO[bytes], engine: Engine) -> None:
        try:
            parquet = import_arrow("pyarrow.parquet")
            try:
                self._file = parquet.ParquetFile(file)
            except ValueError as error:  # what pyarrow's errors of formats are
                raise InvalidInput(f"it is not a Parquet file: {error}") from None
            schema = self._file.schema_arrow
            self._features = _features(schema, engine)
            self._columns = {} if self._features else _columns(schema, engine)
        except BaseException:
            file.close()
            raise
        self._source = file
        self._specs = {spec.name: spec for spec in engine.inputs}
        self.count: int = self._file.metadata.num_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._source.close()

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the inputs from `start` on; row groups before it are not read."""
        groups: list[int] = []
        metadata = self._file.metadata
        for number in range(metadata.num_row_groups):
            rows = metadata.row_group(number).num_rows
            if groups or start < rows:
                groups.append(number)
            else:
                start -= rows
        columns = self._features or list(self._columns.values())
        rows = max(1, min(_BATCH_ROWS, _BATCH_CELLS // len(columns)))
        batches = self._file.iter_batches(batch_size=rows, row_groups=groups, columns=columns)
        for batch in batches:
            if start >= batch.num_rows:
                start -= batch.num_rows
                continue
            batch, start = batch.slice(start), 0
            if self._features:
                [spec] = self._specs.values()
                cells = {spec.name: _wide(batch.columns, spec)}
            else:
                cells = {
                    name: _cells(batch.column(column), self._specs[name])
                    for name, column in self._columns.items()
                }
            for values in zip(*cells.values(), strict=True):
                yield dict(zip(cells, values, strict=True))


def _features(schema: Any, engine: Engine) -> list[str]:
    """Return the columns of numbers, if they are as many as the only input has elements."""
    spec = engine.inputs[0]
    inner = inner_shape(spec)
    if len(engine.inputs) > 1 or spec.name in schema.names or len(schema.names) == 1 or -1 in inner:
        return []
    types = import_arrow().types
    kinds = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    numbers = [each.name for each in schema if any(is_kind(each.type) for is_kind in kinds)]
    return numbers if len(numbers) == math.prod(inner) else []


def _columns(schema: Any, engine: Engine) -> dict[str, str]:
    """Return the column of each input; encoded files may be in the only column of binaries."""
    pyarrow = import_arrow()
    if engine.preprocess and len(engine.inputs) == 1:
        binaries = [
            field.name
            for field in schema
            if pyarrow.types.is_binary(field.type) or pyarrow.types.is_large_binary(field.type)
        ]
        if len(binaries) == 1:
            return {engine.inputs[0].name: binaries[0]}
    return match_columns(schema.names, engine)


def _cells(column: Any, spec: TensorSpec) -> Iterator[Any]:
    pyarrow = import_arrow()
    types = pyarrow.types
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    kind = column.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    # NumPy has no missing integers: with one among them, all would become floats.
    if is_list and types.is_primitive(kind.value_type) and not _lacks_some(column):
        yield from _flat_lists(column, spec)
        return
    for cell in column:
        value = _number(cell.as_py(), spec)
        yield as_array(value, spec) if isinstance(value, list) else value


def _lacks_some(lists: Any) -> bool:
    return bool(lists.null_count or lists.flatten().null_count)


def _number(value: Any, spec: TensorSpec) -> Any:
    """Return a decimal, or each of a list, as a number of the engine; any other value unchanged."""
    if isinstance(value, list):
        return [_number(each, spec) for each in value]
    if not isinstance(value, Decimal):
        return value
    is_whole = is_integer(spec) and value == value.to_integral_value()
    return int(value) if is_whole else float(value)


def _wide(columns: Sequence[Any], spec: TensorSpec) -> Iterator[Any]:
    types = import_arrow().types
    if all(types.is_primitive(each.type) and not each.null_count for each in columns):
        arrays = [each.to_numpy(zero_copy_only=False) for each in columns]
        if len({array.dtype.kind for array in arrays}) == 1:
            for row in np.column_stack(arrays):
                yield in_shape(row, spec)
            return
    for cells in zip(*(_cells(each, spec) for each in columns), strict=True):
        yield as_array(cells, spec)


def _flat_lists(column: Any, spec: TensorSpec) -> Iterator[Any]:
    lengths = import_arrow("pyarrow.compute").list_value_length(column)
    values = column.flatten().to_numpy(zero_copy_only=False)
    end = 0
    for length in lengths.to_pylist():
        begin, end = end, end + length
        yield in_shape(values[begin:end], spec)
