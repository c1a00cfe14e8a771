"""Files whose rows are inputs: text, and arrays."""

import csv
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.lib import format as npy_format

from synergai.client.casting import cast_value
from synergai.data.inventory import InputInventory
from synergai.data.items import Unusable
from synergai.data.row_files import ArrayStream
from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from tests.engines import new_engine

TRIPLE = (TensorSpec("x", "FP32", (-1, 3)),)
IMAGE = (TensorSpec("x", "FP32", (-1, 2, 2)),)
PAIR = (TensorSpec("a", "INT64", (1,)), TensorSpec("b", "FP32", (-1, 2)))
TEXT = (TensorSpec("t", "BYTES", (-1,)),)


def read(
    path: Path,
    inputs: tuple[TensorSpec, ...],
    start: int = 0,
    *,
    cast: bool = True,
) -> list[Any]:
    """Return the inputs of a file, as an engine gets them if `cast`."""
    engine = new_engine("e", inputs)
    specs = {spec.name: spec for spec in inputs}
    with InputInventory([str(path)], engine, limit=1 << 20) as inventory:
        for _ in inventory.scan():
            pass
        items = list(inventory.read(start))
        assert len(items) == inventory.inputs - start
    return [
        item.value.reason
        if isinstance(item.value, Unusable)
        else dict(item.value)
        if not cast
        else {name: cast_value(each, specs[name]).tolist() for name, each in item.value.items()}
        for item in items
    ]


@pytest.mark.parametrize(
    ("name", "content", "inputs", "expected"),
    [
        ("a.csv", "3,2,3\n4,5,6.5\n", TRIPLE, [{"x": [[3, 2, 3]]}, {"x": [[4, 5, 6.5]]}]),
        (
            "a.csv",
            "height,width,depth\n1,2,3\n\n4,5,6\n",
            TRIPLE,
            [{"x": [[1, 2, 3]]}, {"x": [[4, 5, 6]]}],
        ),
        ("a.csv", 'x\n"[1, 2, 3]"\n', TRIPLE, [{"x": [[1, 2, 3]]}]),
        ("a.csv", "1,2,3,4\n", IMAGE, [{"x": [[[1, 2], [3, 4]]]}]),
        ("a.csv", 'n,b,a\n7,"[1,2]",5\n', PAIR, [{"a": [5], "b": [[1, 2]]}]),
        ("a.csv", "t,n\nred wine,1\n12,2\n", TEXT, [{"t": ["red wine"]}, {"t": ["12"]}]),
        ("a.jsonl", "[1, 2, 3]\n\n[4, 5, 6]\n", TRIPLE, [{"x": [[1, 2, 3]]}, {"x": [[4, 5, 6]]}]),
        ("a.jsonl", "[[1, 2], [3, 4]]\n", IMAGE, [{"x": [[[1, 2], [3, 4]]]}]),
        ("a.jsonl", '{"b": [1, 2], "a": 5, "c": 0}\n', PAIR, [{"a": [5], "b": [[1, 2]]}]),
        ("a.jsonl", '{"t": "red"}\n', TEXT, [{"t": ["red"]}]),
    ],
)
def test_rows_of_values_are_inputs(
    tmp_path: Path, name: str, content: str, inputs: tuple[TensorSpec, ...], expected: list[Any]
) -> None:
    file = tmp_path / name
    file.write_text(content)
    assert read(file, inputs) == expected
    assert read(file, inputs, start=1) == expected[1:]


def test_large_integers_keep_their_digits(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"{2**63 - 1},{-(2**63)}\n")
    found = read(file, (TensorSpec("x", "INT64", (-1,)),))
    assert found == [{"x": [2**63 - 1, -(2**63)]}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "3,2,3\n4,none,6\n"),
        ("a.csv", 'x,y\n"[1,2,3]",1\n5 6,2\n'),
        ("a.jsonl", '[1,2,3]\n["a"]\n'),
    ],
)
def test_value_that_is_no_number_is_refused_alone(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read(tmp_path / name, TRIPLE, start=2) == []
    with pytest.raises(InvalidInput):
        read(tmp_path / name, TRIPLE, start=1)


@pytest.mark.parametrize(
    ("name", "content", "inputs", "reason"),
    [
        ("a.csv", "id,height,kind\n7,1.5,2\n", PAIR, "'id,height,kind'.* have 'a', 'b'"),
        ("a.csv", "text\nred wine\n", TEXT, "'text'.* have 't'"),
        ("a.jsonl", '{"id": 7, "y": [1, 2, 3]}\n', TRIPLE, "have 'x', or numbers alone"),
        ("a.jsonl", "[1, 2]\n", PAIR, "have 'a', 'b'"),
        ("a.jsonl", '"rows.npy"\n', TRIPLE, "'rows.npy'.* or numbers alone"),
    ],
)
def test_file_without_values_for_the_engine_is_refused_by_its_columns(
    tmp_path: Path, name: str, content: str, inputs: tuple[TensorSpec, ...], reason: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=reason):
        read(tmp_path / name, inputs)


# --- the first row ----------------------------------------------------------------------


@pytest.mark.parametrize("content", ["id,height,3\n1,2,3\n", "5.1,,1.4\n1,2,3\n", "5,n/a,1\n"])
def test_first_row_that_may_be_a_header_or_an_input_is_refused(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InvalidInput, match=r"a\.csv: its first row, .* is in doubt"):
        read(tmp_path / "a.csv", TRIPLE)


def test_first_row_without_a_number_is_a_header_and_one_of_numbers_an_input(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("0,1,2\n4,5,6\n")
    assert read(path, TRIPLE) == [{"x": [[0, 1, 2]]}, {"x": [[4, 5, 6]]}]
    path.write_text("a,b c,\n4,5,6\n")
    assert read(path, TRIPLE) == [{"x": [[4, 5, 6]]}]


def test_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,n,x\n"[1,2,3]",7,"[4,5,6]"\n')
    with pytest.raises(InvalidInput, match="2 columns 'x'"):
        read(tmp_path / "a.csv", TRIPLE)
    table = pa.Table.from_arrays([pa.array([[1.0, 2.0, 3.0]])] * 2, names=["x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InvalidInput, match="2 columns 'x'"):
        read(tmp_path / "a.parquet", TRIPLE)
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2, 3], "x": [4, 5, 6]}\n')
    with pytest.raises(InvalidInput, match=r"line 1: .*'x' is there twice"):
        read(tmp_path / "a.jsonl", TRIPLE)


# --- text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", b"t\nred\nros\xe9\n", "line 3: byte 0xE9"),
        ("a.csv", "t\nrosé\n".encode("utf-16"), "line 1: byte 0xFF"),
        ("a.jsonl", b'{"t": "red"}\n{"t": "ros\xe9"}\n', "line 2: byte 0xE9"),
        ("a.csv", b"t\nros\xc3", "line 2: byte 0xC3"),
    ],
)
def test_text_of_another_encoding_is_refused_with_line_and_byte(
    tmp_path: Path, name: str, content: bytes, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"{name}: {place} is not UTF-8"):
        read(tmp_path / name, TEXT)


def test_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufefft\nred\n", "utf-8")
    assert read(tmp_path / "a.csv", TEXT) == [{"t": ["red"]}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('id,t\n7,"one\n8,two\n', "begins in line 2: unexpected end of data"),
        ('id,t\n7,"one"two\n', "begins in line 2: "),
    ],
)
def test_quotes_that_would_change_text_are_refused_with_their_line(
    tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InvalidInput, match=reason):
        read(tmp_path / "a.csv", TEXT)


def test_row_of_more_or_fewer_cells_than_the_header_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,t\n7,good day, sir\n8,good day\n9\n")
    assert read(tmp_path / "a.csv", TEXT) == [
        "line 2: it has 3 cells, and the header has 2",
        {"t": ["good day"]},
        "line 4: it has 1 cell, and the header has 2",
    ]


@pytest.mark.parametrize("cell", ["1e400", "1_0", "1" * 5000, "-1e999"])
def test_number_is_not_taken_for_another_one(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.csv").write_text(f"x,y\n{cell},1\n")
    with pytest.raises(InvalidInput, match=f"takes numbers, not '{cell[:9]}"):
        read(tmp_path / "a.csv", (TensorSpec("x", "FP64", (-1,)),))
    (tmp_path / "a.jsonl").write_text(f"[1, 2, 3]\n[1, 2, {cell}]\n")
    _, refused = read(tmp_path / "a.jsonl", TRIPLE)
    assert refused.startswith("line 2: it is not JSON")
    assert "sys." not in refused


def test_whole_numbers_beside_fractions_keep_their_digits(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("9007199254740993,1.0\n")
    assert read(tmp_path / "a.csv", (TensorSpec("x", "INT64", (-1,)),)) == [
        {"x": [9007199254740993, 1]}
    ]


def test_cell_may_be_as_long_as_a_message(tmp_path: Path) -> None:
    text = "x" * 200_000
    (tmp_path / "a.csv").write_text(f"t\n{text}\n")
    assert read(tmp_path / "a.csv", TEXT) == [{"t": [text]}]


def test_too_long_a_cell_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"t\nred\n{'x' * 200}\n")
    limit = csv.field_size_limit(100)
    try:
        with pytest.raises(InvalidInput, match=r"the row that begins in line 3: .* limit"):
            read(tmp_path / "a.csv", TEXT)
    finally:
        csv.field_size_limit(limit)


# --- wide tables ------------------------------------------------------------------------


def write_table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_columns_of_numbers_are_the_features_of_one_wide_input(tmp_path: Path) -> None:
    expected = [{"x": [[1, 2, 3.5]]}, {"x": [[4, 5, 6.5]]}]
    for name, columns in (
        ("floats", {"h": [1.0, 4.0], "w": [2.0, 5.0], "d": [3.5, 6.5]}),
        ("mixed", {"h": [1, 4], "w": [2.0, 5.0], "d": [Decimal("3.5"), Decimal("6.5")]}),
        ("texts", {"id": ["a", "b"], "h": [1, 4], "w": [2, 5], "d": [3.5, 6.5]}),
    ):
        path = write_table(tmp_path / f"{name}.parquet", **columns)
        assert read(path, TRIPLE) == expected
        assert read(path, TRIPLE, start=1) == expected[1:]
    whole = write_table(tmp_path / "whole.parquet", h=[2**53 + 1], w=[2], d=[3])
    assert read(whole, (TensorSpec("x", "INT64", (-1, 3)),)) == [{"x": [[2**53 + 1, 2, 3]]}]
    four = write_table(tmp_path / "four.parquet", a=[1], b=[2], c=[3], d=[4])
    assert read(four, IMAGE) == [{"x": [[[1, 2], [3, 4]]]}]
    with pytest.raises(InvalidInput, match=r"columns a, b, c, d; .* needs x, or 3 of numbers$"):
        read(four, TRIPLE)


def test_missing_feature_fails_its_row_alone(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", h=[1.0, None], w=[2, 5], d=[3, 6])
    first, second = read(path, TRIPLE, cast=False)
    assert first["x"].tolist() == [1, 2, 3]
    with pytest.raises(InvalidInput, match="takes numbers, not None"):
        cast_value(second["x"], TRIPLE[0])


@pytest.mark.parametrize(
    ("datatype", "values"), [("FP32", [1.5, 2.0]), ("INT64", [9007199254740993, 2])]
)
def test_decimals_are_numbers(tmp_path: Path, datatype: str, values: list[float]) -> None:
    cells = [Decimal(str(value)) for value in values]
    for column in (cells, [[cell] for cell in cells]):
        path = write_table(tmp_path / "a.parquet", x=column)
        found = read(path, (TensorSpec("x", datatype, (-1, 1)),))
        assert found == [{"x": [[value]]} for value in values]


def test_missing_element_of_a_list_is_not_a_number(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", x=[[9007199254740993, 2, 3], [4, None, 6]])
    first, second = read(path, (TensorSpec("x", "INT64", (-1, 3)),), cast=False)
    assert first["x"].tolist() == [9007199254740993, 2, 3]
    with pytest.raises(InvalidInput, match="takes numbers, not None"):
        cast_value(second["x"], TRIPLE[0])


def test_texts_of_a_list_keep_the_zeros_at_their_end(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", t=[[b"a\0", b"b"]])
    assert read(path, TEXT) == [{"t": [b"a\0", b"b"]}]


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
