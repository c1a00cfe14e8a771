"""TFLite files, valid and corrupt."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from synergai.models.formats.tflite_file import CorruptFlatBuffer, FlatBufferTable, read_tflite
from tests.tiny_tflite import save_sum


def test_inputs_outputs_and_metadata_are_read(tmp_path: Path) -> None:
    model = read_tflite(save_sum(tmp_path / "m.tflite", width=4, matrix=True))
    assert model.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert model.outputs == (TensorSpec("y", "FP32", (-1, 4)),)
    assert model.format == "TensorFlow Lite, version 3"
    assert model.producer == "written by a test"


def test_quantised_tensors_are_integers(tmp_path: Path) -> None:
    model = read_tflite(save_sum(tmp_path / "m.tflite", dynamic=False, int8=True))
    assert model.inputs == (TensorSpec("x", "INT8", (1, 2)),)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"ONNX" * 100, b"\xff\xff\xff\xffTFL3" + b"\xff" * 64]
)
def test_file_of_another_format_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"m\.tflite is corrupt"):
        read_tflite(path)


def test_mutated_file_is_read_or_rejected(tmp_path: Path) -> None:
    path = save_sum(tmp_path / "m.tflite", matrix=True)
    content, generator = path.read_bytes(), random.Random(1)
    refused = 0
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        path.write_bytes(changed)
        try:
            read_tflite(path)
        except InvalidInput:
            refused += 1
    assert 100 < refused < 500


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_within_bounds(content: bytes) -> None:
    try:
        table = FlatBufferTable.root(content)
        table.number(0, "I")
        table.string(1)
        for inner in table.tables(2, 10):
            inner.numbers(0, "i", 10)
    except CorruptFlatBuffer:
        pass
