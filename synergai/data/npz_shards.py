"""Shards as ``.npz`` archives.

``index``, ``name`` and ``error`` have an element per result, and so has each output along its first
dimension. A result that failed has a text in ``error``, and NaN, 0 or an empty text in its outputs.
An output whose shape differs between results is stored flat, one result after the other, and
``OUTPUT.shape`` has a row of dimensions per result, filled up with -1. Texts that elements of one
size would blow up, or cut, are stored as bytes, and ``OUTPUT.length`` has the length of each.
"""

from __future__ import annotations

import math
import zipfile
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from synergai.data.items import JobResult
from synergai.data.shard_description import column_of, decode_description, encode_description, flat
from synergai.errors import InvalidInput
from synergai.wire.arrays import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.data.shard_description import OutputColumn, ShardDescription

_DESCRIPTION: Final = "_synergai"
_SHAPE: Final = ".shape"
_LENGTH: Final = ".length"
_ABSENT: Final = -2
"""First dimension of a result without the output; -1 fills up those with fewer dimensions."""
_MAX_BLOW_UP: Final = 4
"""Fixed-size texts may take so many times the bytes of the texts."""
_SLACK_BYTES: Final = 1 << 16


class NpzShards:
    """Reads and writes ``.npz`` shards."""

    def write(
        self, file: IO[bytes], results: Sequence[JobResult], description: ShardDescription
    ) -> None:
        """Write a shard to a new file."""
        members: dict[str, NDArray[Any]] = {
            _DESCRIPTION: np.frombuffer(encode_description(description), np.uint8),
            "index": np.fromiter((result.index for result in results), np.int64, len(results)),
            "name": np.asarray([result.name for result in results], np.str_),
            "error": np.asarray([result.error for result in results], np.str_),
        }
        for output in description.outputs:
            members |= _encode(output, column_of(results, output))
        # Not np.savez: outputs may be called like its own arguments. Not compressed: tensors
        # hardly shrink, and compressing them costs more than computing some.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, array in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)

    def describe(self, path: Path) -> ShardDescription:
        """Return a shard's description."""
        with _open(path) as members:
            return _describe(path, members)

    def read(self, path: Path) -> Iterator[JobResult]:
        """Yield a shard's results."""
        with _open(path) as members:
            description = _describe(path, members)
            try:
                columns = {
                    output.name: _decode(output, members, description.count)
                    for output in description.outputs
                }
                rows = zip(
                    members["index"].tolist(),
                    members["name"].tolist(),
                    members["error"].tolist(),
                    *columns.values(),
                    strict=True,
                )
                for index, name, error, *values in rows:
                    outputs = {
                        output: value
                        for output, value in zip(columns, values, strict=True)
                        if value is not None and not error
                    }
                    yield JobResult(index, name, outputs, error)
            except (KeyError, ValueError, zipfile.BadZipFile) as error:
                raise InvalidInput(f"{path} is damaged: {error}") from None


def _open(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidInput(f"{path} is not a shard of results: {error}") from None


def _describe(path: Path, members: Mapping[str, NDArray[Any]]) -> ShardDescription:
    if _DESCRIPTION not in members:
        raise InvalidInput(f"{path} is not a shard of results")
    return decode_description(path, members[_DESCRIPTION].tobytes())


def _encode(output: OutputColumn, arrays: Sequence[NDArray[Any] | None]) -> dict[str, NDArray[Any]]:
    if output.datatype == "BYTES":
        return _encode_texts(output, arrays)
    # Without the mark of bfloat16, which NumPy warns that it cannot store.
    dtype = np.dtype(DTYPES[output.datatype].str)
    if output.shape is None:
        return {
            output.column: np.concatenate(flat(arrays)).view(dtype),
            output.column + _SHAPE: _shapes(arrays),
        }
    fill = np.nan if dtype.kind == "f" else 0
    stacked = np.full((len(arrays), *output.shape), fill, dtype)
    for row, array in enumerate(arrays):
        if array is not None:
            stacked[row] = array
    return {output.column: stacked}


def _encode_texts(
    output: OutputColumn, arrays: Sequence[NDArray[Any] | None]
) -> dict[str, NDArray[Any]]:
    texts = [text for array in flat(arrays) for text in array.tolist()]
    total = sum(map(len, texts))
    longest = max(map(len, texts), default=0)
    is_compact = longest * len(texts) <= _MAX_BLOW_UP * total + _SLACK_BYTES
    if output.shape is not None and is_compact and not any(text.endswith(b"\0") for text in texts):
        stacked = np.full((len(arrays), *output.shape), b"", f"S{max(1, longest)}")
        for row, array in enumerate(arrays):
            if array is not None:
                stacked[row] = array
        return {output.column: stacked}
    return {
        output.column: np.frombuffer(b"".join(texts), np.uint8),
        output.column + _LENGTH: np.fromiter(map(len, texts), np.int64, len(texts)),
        output.column + _SHAPE: _shapes(arrays),
    }


def _shapes(arrays: Sequence[NDArray[Any] | None]) -> NDArray[np.int64]:
    dimensions = max((array.ndim for array in arrays if array is not None), default=0)
    shapes = np.full((len(arrays), max(1, dimensions)), -1, np.int64)
    for row, array in enumerate(arrays):
        if array is None:
            shapes[row, 0] = _ABSENT
        else:
            shapes[row, : array.ndim] = array.shape
    return shapes


def _decode(
    output: OutputColumn, members: Mapping[str, NDArray[Any]], count: int
) -> list[NDArray[Any] | None]:
    """Return the output of each result; None for a result that certainly has none."""
    column: NDArray[Any] = members[output.column]
    if output.column + _LENGTH in members:
        lengths = members[output.column + _LENGTH].tolist()
        data, end, texts = column.tobytes(), 0, np.empty(len(lengths), object)
        for number, length in enumerate(lengths):
            texts[number] = data[end : end + length]
            end += length
        column = texts
    if output.column + _SHAPE in members:
        return _split(column, members[output.column + _SHAPE])
    if len(column) != count:
        raise ValueError(f"{output.column} has {len(column)} rows instead of {count}")
    # A view, so that bfloat16, which files do not know, is marked as such.
    typed = (
        column.astype(object)
        if output.datatype == "BYTES"
        else column.view(DTYPES[output.datatype])
    )
    return list(typed) if typed.ndim > 1 else [typed[row, ...] for row in range(count)]


def _split(column: NDArray[Any], shapes: NDArray[np.int64]) -> list[NDArray[Any] | None]:
    arrays: list[NDArray[Any] | None] = []
    end = 0
    for row in shapes.tolist():
        if row[0] == _ABSENT:
            arrays.append(None)
            continue
        shape = [size for size in row if size >= 0]
        begin, end = end, end + math.prod(shape)
        arrays.append(column[begin:end].reshape(shape))
    return arrays
