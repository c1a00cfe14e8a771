"""The ``[warmup]`` table of engine.toml."""

import re
from pathlib import Path

import pytest

from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from synergai.models.directory import EngineDefinition, ModelDirectory
from synergai.models.samples import load_samples

X = TensorSpec("x", "FP32", (-1, -1, 3))
TEXT = TensorSpec("text", "BYTES", (-1,))


def definition(tmp_path: Path, toml: str) -> EngineDefinition:
    folder = tmp_path / "models" / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(b"model")
    (folder / "engine.toml").write_text(toml, "utf-8")
    return ModelDirectory(tmp_path / "models").get("engine")


def test_samples_have_the_given_shapes_and_values(tmp_path: Path) -> None:
    found = definition(
        tmp_path, '[warmup]\nx = { shape = [2, 5, 3], value = 0.5 }\ntext = { value = "12" }'
    )

    first = load_samples(found, [X, TEXT]).inputs[0]

    assert first["x"].shape == (2, 5, 3)
    assert (first["x"] == 0.5).all()
    assert first["text"].tolist() == [b"12"]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("warmup = 1", "must be a table"),
        ("[warmup]\nx = 1", "warmup must be a table"),
        ("[warmup]\nx = { size = [1] }", "no setting size, but shape, value"),
        ("[warmup]\nx = { shape = [1, -1, 3] }", "shape 2 must be an integer of at least 0"),
        ("[warmup]\nx = { shape = 1 }", "shape must be a list"),
        ("[warmup]\nx = { value = [1] }", "value must be true or false, an integer"),
    ],
)
def test_malformed_table_is_a_fault_that_names_the_entry(
    tmp_path: Path, entry: str, complaint: str
) -> None:
    assert re.search(complaint, definition(tmp_path, entry).fault)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("y = { value = 1 }", "an entry for 'y', but the engine takes x"),
        ("x = { shape = [1, 2] }", r"the shape \[1, 2\], but the engine takes \[-1, -1, 3\]"),
        ("x = { shape = [1, 2, 4] }", r"the shape \[1, 2, 4\]"),
        ('x = { value = "1" }', "the value '1', but the engine takes FP32"),
    ],
)
def test_entry_that_does_not_fit_the_model_is_rejected(
    tmp_path: Path, entry: str, complaint: str
) -> None:
    found = definition(tmp_path, f"[warmup]\n{entry}")

    with pytest.raises(InvalidInput, match=complaint):
        load_samples(found, [X])


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT8", 300), ("UINT8", -1), ("INT64", 0.5), ("BYTES", 1)]
)
def test_value_that_the_datatype_cannot_represent_is_rejected(
    tmp_path: Path, datatype: str, value: float
) -> None:
    found = definition(tmp_path, f"[warmup]\nx = {{ value = {value} }}")

    with pytest.raises(InvalidInput, match=f"the engine takes {datatype}"):
        load_samples(found, [TensorSpec("x", datatype, (1,))])
