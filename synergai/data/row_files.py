"""Files whose rows are inputs: arrays (.npy), archives of arrays (.npz), Parquet and text.

Every reader is a context manager with the number of inputs in its file, and yields them lazily.
"""

from __future__ import annotations

import math
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np
from numpy.lib import format as npy_format

from synergai.data.columns import count_rows, match_columns
from synergai.data.files import suffix_of
from synergai.data.text_rows import TEXT_SUFFIXES, TextRows
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

    from synergai.data.columns import Row
    from synergai.data.items import Unusable
    from synergai.data.text_files import TextFormat
    from synergai.domain import Engine

ROW_SUFFIXES: Final = frozenset((".npy", ".npz", ".parquet"))
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


def open_rows(path: str, engine: Engine, text: TextFormat) -> RowFile:
    """Open a file of rows by its suffix."""
    if suffix_of(path) in TEXT_SUFFIXES:
        return TextRows(path, engine, text)
    if suffix_of(path) == ".parquet":
        from synergai.data.parquet import ParquetRows

        return ParquetRows(Path(path).open("rb"), engine)
    return ArrayRows(Path(path).open("rb"), engine, archive=suffix_of(path) == ".npz")


class ArrayRows:
    """Rows of an array, or of the arrays of an archive.

    Args:
        file: the file, which this object closes.

    Attributes:
        single: whether the arrays are one input, without a dimension of rows.
    """

    def __init__(self, file: IO[bytes], engine: Engine, *, archive: bool) -> None:
        with ExitStack() as stack:
            stack.enter_context(file)
            files = _members(file, engine, stack) if archive else _only_input(file, engine)
            self._streams = {name: ArrayStream(member) for name, member in files.items()}
            shapes = {name: stream.shape for name, stream in self._streams.items()}
            rows = count_rows(shapes, engine)
            self.single = rows is None
            self.count = 1 if rows is None else rows
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the inputs from `start` on."""
        if self.single:
            if start == 0:
                yield {name: stream.read_all() for name, stream in self._streams.items()}
            return
        names = list(self._streams)
        columns = [stream.rows(start) for stream in self._streams.values()]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _only_input(file: IO[bytes], engine: Engine) -> dict[str, IO[bytes]]:
    if len(engine.inputs) != 1:
        names = ", ".join(spec.name for spec in engine.inputs)
        raise InvalidInput(
            f"engine {engine.name!r} has {len(engine.inputs)} inputs: put the arrays "
            f"{names} into a .npz file"
        )
    return {engine.inputs[0].name: file}


def _members(file: IO[bytes], engine: Engine, stack: ExitStack) -> dict[str, IO[bytes]]:
    try:
        archive = stack.enter_context(zipfile.ZipFile(file))
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"it is not a .npz file: {error}") from None
    members = {name.removesuffix(".npy"): name for name in archive.namelist()}
    columns = match_columns(members, engine, "arrays")
    return {
        name: stack.enter_context(archive.open(members[column])) for name, column in columns.items()
    }


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
        """Return the whole array."""
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
