"""Rows of values in CSV and JSON-lines files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synergai.client.casting import cast_value
from synergai.data.inventory import InputInventory
from synergai.data.items import Unusable
from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from tests.engines import new_engine

TRIPLE = (TensorSpec("x", "FP32", (-1, 3)),)
IMAGE = (TensorSpec("x", "FP32", (-1, 2, 2)),)
PAIR = (TensorSpec("a", "INT64", (1,)), TensorSpec("b", "FP32", (-1, 2)))
TEXT = (TensorSpec("t", "BYTES", (-1,)),)


def read(path: Path, inputs: tuple[TensorSpec, ...], start: int = 0) -> list[Any]:
    """Return the inputs of a file as an engine gets them."""
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
        else {name: cast_value(each, specs[name]).tolist() for name, each in item.value.items()}
        for item in items
    ]


@pytest.mark.parametrize(
    ("name", "content", "inputs", "expected"),
    [
        ("a.csv", "1,2,3\n4,5,6.5\n", TRIPLE, [{"x": [[1, 2, 3]]}, {"x": [[4, 5, 6.5]]}]),
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


def test_lists_of_paths_are_manifests_still(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((2, 3), np.float32))
    for name, content in (
        ("a.csv", "path,name\nrows.npy,first\n"),
        ("b.csv", "rows.npy\n"),
        ("c.jsonl", '"rows.npy"\n'),
        ("d.jsonl", '{"path": "rows.npy"}\n'),
    ):
        (tmp_path / name).write_text(content)
        assert read(tmp_path / name, TRIPLE) == [{"x": [[1, 1, 1]]}] * 2
    (tmp_path / "12").write_bytes(b"text")
    (tmp_path / "e.csv").write_text("12\n")
    engine = new_engine("e", TEXT)
    with InputInventory([str(tmp_path / "e.csv")], engine, limit=99) as inventory:
        list(inventory.scan())
        assert [item.value for item in inventory.read()] == [b"text"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "1,2,3\n4,none,6\n"),
        ("a.csv", 'x,y\n"[1,2,3]",1\n5 6,2\n'),
        ("a.jsonl", "[1,2,3]\n{\n"),
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
        (
            "a.csv",
            "id,height,kind\na7,1.5,red\n",
            TRIPLE,
            "'id,height,kind'.*'x', or numbers alone",
        ),
        ("a.csv", "id,height,kind\n7,1.5,2\n", PAIR, "the columns 'a', 'b'$"),
        ("a.csv", "text\nred wine\n", TEXT, "a column 'path'.*the columns 't'$"),
        ("a.jsonl", '{"id": 7, "y": [1, 2, 3]}\n', TRIPLE, "'x', or numbers alone"),
        ("a.jsonl", "[1, 2]\n", PAIR, "the columns 'a', 'b'$"),
    ],
)
def test_file_that_is_neither_a_list_nor_rows_for_the_engine_is_refused_by_its_columns(
    tmp_path: Path, name: str, content: str, inputs: tuple[TensorSpec, ...], reason: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=reason):
        read(tmp_path / name, inputs)


def test_list_whose_first_file_is_missing_is_a_manifest_still(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((1, 3), np.float32))
    (tmp_path / "a.csv").write_text("missing.npy,1\nrows.npy,2\n")
    missing, row = read(tmp_path / "a.csv", TRIPLE)
    assert "no such file (line 1 of manifest" in missing
    assert row == {"x": [[1, 1, 1]]}
