"""Shards: Parquet files of consecutive results, which never change once they have their name.

A shard describes itself: its job, the outputs, and the cursor after its last result, where fetching
continues.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from synergai.data.items import JobResult
from synergai.data.parquet import import_arrow
from synergai.errors import InvalidInput
from synergai.runtime.files import naming
from synergai.wire.arrays import DTYPES, datatype_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

TEMPORARY_PREFIX: Final = ".synergai-"
_METADATA: Final = b"synergai"
_SHAPE: Final = ".shape"
"""End of the name of the column with the shapes of another one."""
_RESERVED: Final = frozenset(("index", "name", "error"))
"""Columns of every shard; an output with one of these names is renamed."""


class OutputColumn(msgspec.Struct, frozen=True):
    """Format of an output in a shard.

    Attributes:
        datatype: its datatype in the Open Inference Protocol.
        shape: its shape in every result; None if that differs between results.
    """

    name: str
    column: str
    datatype: str
    shape: tuple[int, ...] | None


class ShardDescription(msgspec.Struct, frozen=True):
    """Description of a shard.

    Attributes:
        cursor: where its results continue after this shard.
        total: number of results in this and all earlier shards.
        outputs: the outputs, in the engine's order.
    """

    job_id: str
    cursor: int
    count: int
    total: int
    outputs: tuple[OutputColumn, ...] = ()


def _describe_outputs(results: Sequence[JobResult]) -> tuple[OutputColumn, ...]:
    """Return how a shard of these results stores their outputs."""
    datatypes: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...] | None] = {}
    for result in results:
        for name, array in result.outputs.items():
            datatype = "BYTES" if array.dtype.hasobject else datatype_of(array.dtype)
            if datatypes.setdefault(name, datatype) != datatype:
                raise InvalidInput(
                    f"output {name!r} is {datatypes[name]} in one result and {datatype} in another"
                )
            if shapes.setdefault(name, array.shape) != array.shape:
                shapes[name] = None
    return tuple(
        OutputColumn(name, _column_name(name, set(datatypes)), datatype, shapes[name])
        for name, datatype in datatypes.items()
    )


def _column_name(output: str, outputs: set[str]) -> str:
    column = output
    while (
        column in _RESERVED or column.endswith(_SHAPE) or (column != output and column in outputs)
    ):
        column += "_"
    return column


def write_shard(
    path: Path, results: Sequence[JobResult], *, job_id: str, cursor: int, total: int
) -> None:
    """Write a shard that appears at `path` complete and durable, or not at all.

    Args:
        path: the file, which must not exist.
        results: the results, in the order of the cursor; not empty.
        cursor: where its results continue after the last of these.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, "it exists already", str(path))
    description = ShardDescription(job_id, cursor, len(results), total, _describe_outputs(results))
    with (
        naming(path),
        NamedTemporaryFile(
            dir=path.parent, prefix=f"{TEMPORARY_PREFIX}{path.name}-", delete=False
        ) as file,
    ):
        temporary = Path(file.name)
        try:
            _write(file, results, description)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _write(file: IO[bytes], results: Sequence[JobResult], description: ShardDescription) -> None:
    """Write a shard to a new file."""
    arrow = import_arrow()
    columns = {
        "index": arrow.array([result.index for result in results], arrow.int64()),
        "name": arrow.array([result.name for result in results], arrow.string()),
        "error": arrow.array([result.error or None for result in results], arrow.string()),
    }
    for output in description.outputs:
        arrays = [result.outputs.get(output.name) for result in results]
        columns[output.column] = _encode(output, arrays)
        if output.shape is None:
            shapes = [None if array is None else list(array.shape) for array in arrays]
            columns[output.column + _SHAPE] = arrow.array(shapes, arrow.list_(arrow.int64()))
    table = arrow.table(columns)
    metadata = {_METADATA: msgspec.json.encode(description)}
    import_arrow("pyarrow.parquet").write_table(table.replace_schema_metadata(metadata), file)


def describe_shard(path: Path) -> ShardDescription:
    """Return a shard's description."""
    try:
        metadata = import_arrow("pyarrow.parquet").read_schema(path).metadata or {}
        return msgspec.json.decode(metadata.get(_METADATA, b""), type=ShardDescription)
    except ValueError as error:  # what the errors of pyarrow and msgspec are
        raise InvalidInput(f"{path} is not a shard of results: {error}") from None


def read_shard(path: Path) -> Iterator[JobResult]:
    """Yield a shard's results."""
    description = describe_shard(path)
    try:
        # Not `read_table`, which takes `name=value` in a path for the column of a partition.
        with import_arrow("pyarrow.parquet").ParquetFile(path) as file:
            table = file.read().combine_chunks()
        outputs = {each.name: _decode(each, table) for each in description.outputs}
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


def _encode(output: OutputColumn, arrays: Sequence[NDArray[Any] | None]) -> Any:
    arrow = import_arrow()
    parts = [np.ascontiguousarray(each).reshape(-1) for each in arrays if each is not None]
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


def _decode(output: OutputColumn, table: Any) -> list[NDArray[Any] | None]:
    """Return the output of each result; None for a result without it."""
    column = _one_chunk(table[output.column])
    shapes: Sequence[Sequence[int] | None]
    if output.shape is None:
        shapes = table[output.column + _SHAPE].to_pylist()
    else:
        valid = column.is_valid().to_pylist()
        shapes = [output.shape if each else None for each in valid]
    is_list = import_arrow().types.is_list(column.type)
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
