"""Rows of a Parquet file, read by row group."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final, Self

import numpy as np

from synergai.data.columns import in_shape, match_columns
from synergai.data.extras import import_arrow
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.data.columns import Row
    from synergai.domain import Engine, TensorSpec

_BATCH_ROWS: Final = 1024
"""Rows decoded at a time; a row group may be the whole file."""


class ParquetRows:
    """Rows of a Parquet file, whose columns are the engine's inputs.

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
            self._columns = _columns(self._file.schema_arrow, engine)
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
        names = list(self._columns)
        batches = self._file.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=groups, columns=list(self._columns.values())
        )
        for batch in batches:
            if start >= batch.num_rows:
                start -= batch.num_rows
                continue
            cells = [
                _cells(batch.column(column).slice(start), self._specs[name])
                for name, column in self._columns.items()
            ]
            start = 0
            for values in zip(*cells, strict=True):
                yield dict(zip(names, values, strict=True))


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
    return match_columns(schema.names, engine, "columns")


def _cells(column: Any, spec: TensorSpec) -> Iterator[Any]:
    """Yield the values of a column; None for a missing one."""
    pyarrow = import_arrow()
    types, kind = pyarrow.types, column.type
    if isinstance(column, pyarrow.ExtensionArray):
        column, kind = column.storage, column.storage.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and types.is_primitive(kind.value_type) and not column.null_count:
        yield from _flat_lists(column, spec)
        return
    for cell in column:
        value = cell.as_py()
        yield in_shape(np.asarray(value), spec) if is_list and value is not None else value


def _flat_lists(column: Any, spec: TensorSpec) -> Iterator[Any]:
    """Yield lists of numbers as views of one array."""
    compute = import_arrow("pyarrow.compute")
    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    values = column.flatten().to_numpy(zero_copy_only=False)
    end = 0
    for length in lengths.tolist():
        begin, end = end, end + length
        yield in_shape(values[begin:end], spec)
