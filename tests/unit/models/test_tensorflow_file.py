"""SavedModels and frozen graphs, valid and corrupt."""

import random
from pathlib import Path

import pytest

from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from synergai.models.formats.tensorflow_file import read_frozen_graph, read_saved_model
from tests.tiny_tensorflow import graph, node, save_saved_model, saved_model


def frozen(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "graph.pb"
    path.write_bytes(content)
    return path


def test_tensors_of_a_saved_models_signature_are_read(tmp_path: Path) -> None:
    model = read_saved_model(save_saved_model(tmp_path / "m"))
    assert model.inputs == (TensorSpec("a", "FP32", (-1, 2)),)
    assert model.outputs == (TensorSpec("b", "FP32", (-1, 2)),)
    assert model.producer == "TensorFlow 2.0.0"


def test_placeholders_and_unconsumed_tensors_are_a_frozen_graphs_interface(
    tmp_path: Path,
) -> None:
    model = read_frozen_graph(frozen(tmp_path, graph(matrix=3) + node("z", "Neg", "y:0")))
    assert model.inputs == (TensorSpec("x:0", "FP32", (-1, 3)),)
    assert [spec.name for spec in model.outputs] == ["z:0"]


def test_operations_that_access_files_are_rejected(tmp_path: Path) -> None:
    hostile = graph() + node("w", "WriteFile", "name", "content")
    with pytest.raises(
        InvalidInput, match="operation WriteFile, which can access files or run code"
    ):
        read_frozen_graph(frozen(tmp_path, hostile))
    folder = save_saved_model(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(saved_model(hostile))
    with pytest.raises(InvalidInput, match="operation WriteFile"):
        read_saved_model(folder)


def test_operations_in_functions_are_checked(tmp_path: Path) -> None:
    inside = node("r", "ReadFile", "name")[1:]  # as a message's only field, its number replaced
    function = bytes([3 << 3 | 2]) + inside
    library = bytes([1 << 3 | 2, len(function)]) + function
    with pytest.raises(InvalidInput, match="operation ReadFile"):
        read_frozen_graph(frozen(tmp_path, graph() + bytes([2 << 3 | 2, len(library)]) + library))


def test_missing_signature_error_lists_the_existing_ones(tmp_path: Path) -> None:
    folder = save_saved_model(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(saved_model(graph(), "train"))
    with pytest.raises(InvalidInput, match="no signature 'serving_default'; it has: train"):
        read_saved_model(folder)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"TFL3" * 9, b"\x0a\xff\xff\xff\xff\x7f", b"\x10\x01"]
)
def test_file_of_another_format_is_rejected(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"graph\.pb is corrupt"):
        read_frozen_graph(frozen(tmp_path, content))
    folder = save_saved_model(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(content)
    with pytest.raises(InvalidInput, match="m is corrupt"):
        read_saved_model(folder)


def test_mutated_file_is_read_or_rejected(tmp_path: Path) -> None:
    folder = save_saved_model(tmp_path / "m")
    content, generator = saved_model(graph(matrix=3)), random.Random(1)
    refused = 0
    for _ in range(500):
        changed = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        (folder / "saved_model.pb").write_bytes(changed)
        try:
            read_saved_model(folder)
        except InvalidInput:
            refused += 1
    assert 100 < refused < 500
