"""Shards as Parquet files.

``index``, ``name`` and ``error`` are plain columns; ``error`` is null unless the result failed, and
the outputs are null if it did. An output of one element is a plain column too; any other is a list
of its elements, row by row. An output whose shape differs between results has a column
``OUTPUT.shape`` in a column of its own.
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from synergai.data.extras import import_arrow
from synergai.data.results import JobResult
from synergai.data.shard_description import column_of, decode_description, encode_description, flat
from synergai.errors import InvalidInput
from synergai.wire.arrays import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.data.shard_description import OutputColumn, ShardDescription

_METADATA: Final = b"synergai"
_SHAPE: Final = ".shape"


class ParquetShards:
    """Reads and writes Parquet shards."""

    def __init__(self) -> None:
        self._arrow = import_arrow()
        self._parquet = import_arrow("pyarrow.parquet")

    def write(
        self, file: IO[bytes], results: Sequence[JobResult], description: ShardDescription
    ) -> None:
        """Write a shard to a new file."""
        arrow = self._arrow
        columns = {
            "index": arrow.array([result.index for result in results], arrow.int64()),
            "name": arrow.array([result.name for result in results], arrow.string()),
            "error": arrow.array([result.error or None for result in results], arrow.string()),
        }
        for output in description.outputs:
            arrays = column_of(results, output)
            columns[output.column] = self._encode(output, arrays)
            if output.shape is None:
                shapes = [None if array is None else list(array.shape) for array in arrays]
                columns[output.column + _SHAPE] = arrow.array(shapes, arrow.list_(arrow.int64()))
        table = arrow.table(columns)
        metadata = {_METADATA: encode_description(description)}
        self._parquet.write_table(table.replace_schema_metadata(metadata), file)

    def describe(self, path: Path) -> ShardDescription:
        """Return a shard's description."""
        try:
            metadata = self._parquet.read_schema(path).metadata or {}
        except ValueError as error:  # what pyarrow's errors of formats are
            raise InvalidInput(f"{path} is not a shard of results: {error}") from None
        if _METADATA not in metadata:
            raise InvalidInput(f"{path} is not a shard of results")
        return decode_description(path, metadata[_METADATA])

    def read(self, path: Path) -> Iterator[JobResult]:
        """Yield a shard's results."""
        description = self.describe(path)
        try:
            # Not `read_table`, which takes `name=value` in a path for the column of a partition.
            with self._parquet.ParquetFile(path) as file:
                table = file.read().combine_chunks()
            outputs = {each.name: self._decode(each, table) for each in description.outputs}
            rows = zip(
                table["index"].to_pylist(),
                table["name"].to_pylist(),
                table["error"].to_pylist(),
                *outputs.values(),
                strict=True,
            )
        except (KeyError, ValueError) as fault:
            raise InvalidInput(f"{path} is damaged: {fault}") from None
        for index, name, error, *values in rows:
            found = {
                output: value
                for output, value in zip(outputs, values, strict=True)
                if value is not None
            }
            yield JobResult(index, name, found, error or "")

    def _encode(self, output: OutputColumn, arrays: Sequence[NDArray[Any] | None]) -> Any:
        arrow = self._arrow
        parts = flat(arrays)
        absent = np.fromiter((array is None for array in arrays), bool, len(arrays))
        if output.datatype == "BYTES":
            texts = [text for part in parts for text in part.tolist()]
            values = arrow.array(texts, arrow.binary())
        else:
            values = arrow.array(np.concatenate(parts))
        sizes = np.fromiter((0 if a is None else a.size for a in arrays), np.int32, len(arrays))
        offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
        if output.shape is not None and math.prod(output.shape) == 1:
            # Positions of the elements; null where there is none.
            positions = arrow.array(offsets[:-1], mask=absent)
            return values.take(positions)
        return arrow.ListArray.from_arrays(arrow.array(offsets), values, mask=arrow.array(absent))

    def _decode(self, output: OutputColumn, table: Any) -> list[NDArray[Any] | None]:
        """Return the output of each result; None for a result without it."""
        column = _one_chunk(table[output.column])
        shapes: Sequence[Sequence[int] | None]
        if output.shape is None:
            shapes = table[output.column + _SHAPE].to_pylist()
        else:
            valid = column.is_valid().to_pylist()
            shapes = [output.shape if each else None for each in valid]
        is_list = self._arrow.types.is_list(column.type)
        values = column.flatten() if is_list else column.drop_null()
        if output.datatype == "BYTES":
            elements = np.empty(len(values), object)
            elements[:] = values.to_pylist()
        else:
            elements = values.to_numpy(zero_copy_only=False).view(DTYPES[output.datatype])
        arrays: list[NDArray[Any] | None] = []
        end = 0
        for shape in shapes:
            if shape is None:
                arrays.append(None)
                continue
            begin, end = end, end + math.prod(shape)
            arrays.append(elements[begin:end].reshape(shape))
        return arrays


def _one_chunk(column: Any) -> Any:
    chunk = column.combine_chunks()
    # Of a chunked array with several chunks, older versions of pyarrow return another one.
    return chunk.chunk(0) if hasattr(chunk, "num_chunks") else chunk
