"""Arrays whose headers lie about their size."""

import io

import numpy as np
import pytest
from numpy.lib import format as npy_format

from synergai.data.row_files import ArrayStream
from synergai.errors import InvalidInput


def array_file(shape: tuple[int, ...], data: bytes) -> io.BytesIO:
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    npy_format.write_array_header_1_0(file, header)
    file.write(data)
    file.seek(0)
    return file


def test_rows_are_read_in_order() -> None:
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    stream = ArrayStream(array_file(values.shape, values.tobytes()))
    assert [row.tolist() for row in stream.rows(1)] == values[1:].tolist()
    assert stream.read_all().tolist() == values.tolist()


@pytest.mark.parametrize("shape", [(1, 10**15), (1, 2**28 + 1)])
def test_input_larger_than_any_message_is_refused_before_it_is_read(shape: tuple[int, ...]) -> None:
    stream = ArrayStream(array_file(shape, b"\0" * 100))
    with pytest.raises(InvalidInput, match="larger than any message"):
        next(stream.rows())
    with pytest.raises(InvalidInput, match="larger than any message"):
        stream.read_all()


def test_negative_shape_is_refused() -> None:
    with pytest.raises(InvalidInput, match="shape"):
        ArrayStream(array_file((-1, 2), b"\0" * 100))
