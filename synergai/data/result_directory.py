"""Directory with the results of one job: a marker with the job, and numbered shards.

Shards are Parquet files of consecutive results, which never change once they have their name. A
shard describes itself: its job, the outputs, and the cursor after its last result, where fetching
continues.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np

from synergai.data.items import JobResult
from synergai.data.parquet import import_arrow
from synergai.errors import Conflict, InvalidInput
from synergai.runtime.files import replacing, write_atomic
from synergai.wire.arrays import DTYPES, datatype_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


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
    with replacing(path) as file:
        _write(file, results, description)


def _write(file: IO[bytes], results: Sequence[JobResult], description: ShardDescription) -> None:
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
    try:
        metadata = import_arrow("pyarrow.parquet").read_schema(path).metadata or {}
        return msgspec.json.decode(metadata.get(_METADATA, b""), type=ShardDescription)
    except ValueError as error:  # what the errors of pyarrow and msgspec are
        raise InvalidInput(f"{path} is not a shard of results: {error}") from None


def read_shard(path: Path) -> Iterator[JobResult]:
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


MARKER: Final = "synergai-job.json"
_SHARD: Final = re.compile(r"results-([0-9]{6,})\.parquet")


class DirectoryMarker(msgspec.Struct, frozen=True):
    """The job that a directory of results belongs to.

    Attributes:
        job_id: the job; empty if it was not accepted.
        submission: digest of the command that submits the job; empty if it was submitted before.
    """

    job_id: str = ""
    engine: str = ""
    submission: str = ""


class ResultDirectory:
    """A directory that takes the results of one job; a context manager that locks it.

    Files that are not its own are left alone.

    Args:
        path: the directory; it is created if it does not exist.

    Attributes:
        marker: whose results it has; None if it has none yet.
        cursor: where the results continue after its last shard.
    """

    def __init__(self, path: Path) -> None:
        import_arrow()  # before anything is uploaded or fetched
        self._is_new = not path.exists()
        if not (self._is_new or path.is_dir()):
            raise InvalidInput(f"{path} is a file; results are written into a directory")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.marker: DirectoryMarker | None = None
        self.cursor = self.total = 0
        self._next = 1
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._acquire()
            self.marker = read_marker(path)
            self._continue_after(list_shards(path))
            self._remove_temporary_files()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_new and self.marker is None:
            # Nothing came of the command: it leaves no directory behind.
            with suppress(OSError):
                self.path.rmdir()
        os.close(self._lock)

    def check(self, marker: DirectoryMarker) -> None:
        """Check that the directory can take the results of a job, or of a command.

        A marker without a job is of a submission that was not accepted, and binds nothing.
        """
        found = self.marker
        if found is None or not found.job_id:
            return
        same_command = bool(found.submission) and found.submission == marker.submission
        if not (same_command or found.job_id == marker.job_id):
            why = ""
            if found.submission and marker.submission:
                why = ", since the options or the files differ"
            raise Conflict(
                f"{self.path} has the results of job {found.job_id} ({found.engine}); choose "
                f"another directory{why}"
            )

    def claim(self, marker: DirectoryMarker) -> None:
        """Record whose results the directory takes."""
        self.check(marker)
        found = self.marker
        if found is not None and found.job_id:
            marker = DirectoryMarker(
                found.job_id,
                marker.engine or found.engine,
                marker.submission or found.submission,
            )
        if marker != found:
            text = msgspec.json.format(msgspec.json.encode(marker), indent=2).decode()
            write_atomic(self.path / MARKER, f"{text}\n")
            self.marker = marker

    def write(self, results: Sequence[JobResult], cursor: int) -> Path:
        if self.marker is None or not self.marker.job_id:
            raise InvalidInput(f"{self.path} has not been claimed for a job")
        path = self.path / f"results-{self._next:06}.parquet"
        total = self.total + len(results)
        write_shard(path, results, job_id=self.marker.job_id, cursor=cursor, total=total)
        self._next += 1
        self.cursor, self.total = cursor, total
        return path

    def _continue_after(self, shards: Sequence[Path]) -> None:
        if not shards:
            return
        if self.marker is None:
            raise Conflict(
                f"{self.path} has results of a job, but no {MARKER} that says which; choose "
                "another directory"
            )
        last = describe_shard(shards[-1])
        self._next, self.cursor, self.total = _number(shards[-1]) + 1, last.cursor, last.total

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process writes results to {self.path}") from None
        except OSError:
            pass  # a file system without locks

    def _remove_temporary_files(self) -> None:
        """Remove what a killed process has left; the lock makes sure that it is not in use."""
        for path in self.path.glob(".results-*.parquet-*"):
            with suppress(OSError):
                path.unlink()


def read_marker(directory: Path) -> DirectoryMarker | None:
    path = directory / MARKER
    try:
        return msgspec.json.decode(path.read_bytes(), type=DirectoryMarker)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is not the marker of a job: {error}") from None


def list_shards(directory: Path) -> list[Path]:
    return sorted((p for p in directory.iterdir() if _SHARD.fullmatch(p.name)), key=_number)


def _number(path: Path) -> int:
    match = _SHARD.fullmatch(path.name)
    return int(match[1]) if match else 0


def read_results(path: str | os.PathLike[str]) -> Iterator[tuple[int, JobResult]]:
    """Yield the results of a job from the directory that they were written to.

    They come in the order in which the job stored them, while it runs as well: results that are
    written after the call are not among them. One shard at a time is in memory.

    Args:
        path: a directory given as ``--output``, or one of its shards.

    Yields:
        The position of each input, and its result; one that failed has its ``error`` set.
    """
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"{path}: no such directory")
    for shard in list_shards(path) if path.is_dir() else [path]:
        for result in read_shard(shard):
            yield result.index, result
