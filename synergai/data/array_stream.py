"""Rows of an array in NumPy's format, read in chunks from a file of any size.

The file is read, not mapped: one that is truncated in between raises an error instead of ending
the process, and members of archives and remote files work alike.
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib import format as npy_format

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_CHUNK_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 10_000
_MAX_INPUT_BYTES: Final = 1 << 30
"""No message is larger. The header of a damaged or hostile file may tell any size."""
_HEADER_READERS: Final = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


class ArrayStream:
    """An array in a file; the file stays the caller's."""

    def __init__(self, file: IO[bytes]) -> None:
        try:
            read_header = _HEADER_READERS[npy_format.read_magic(file)]
            shape, fortran, dtype = read_header(file, max_header_size=_MAX_HEADER_BYTES)
        except (ValueError, KeyError) as error:
            raise InvalidInput(f"it is not an array in NumPy's format: {error}") from None
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
