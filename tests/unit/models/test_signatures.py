"""The signature of a SavedModel or TFLite file to serve."""

from pathlib import Path

import pytest

from profiler.installation import add_model
from profiler.model_description import describe
from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from synergai.models.descriptions import digests_of
from synergai.models.directory import ModelDirectory
from synergai.models.formats.inspect import check
from tests.tiny_tensorflow import graph, save_saved_model, saved_model
from tests.tiny_tflite import save_sum


def save(folder: Path, kind: str) -> Path:
    """Save a model with the signature ``train``."""
    if kind == "tflite":
        return save_sum(folder / "m.tflite", signature="train")
    saved = save_saved_model(folder / "m")
    (saved / "saved_model.pb").write_bytes(saved_model(graph(), "train"))
    return saved


@pytest.mark.parametrize("kind", ["tflite", "saved model"])
def test_model_is_added_with_its_signature(tmp_path: Path, kind: str) -> None:
    source = save(tmp_path, kind)
    definition = add_model(tmp_path / "models", source, signature="train")
    assert definition.signature == "train"
    contents = describe(definition.file, definition.signature).contents
    assert contents.inputs == (TensorSpec("a", "FP32", (-1, 2)),)
    assert contents.outputs == (TensorSpec("b", "FP32", (-1, 2)),)


@pytest.mark.parametrize("kind", ["tflite", "saved model"])
def test_missing_signature_is_refused_with_the_existing_ones(tmp_path: Path, kind: str) -> None:
    source = save(tmp_path, kind)
    with pytest.raises(InvalidInput, match=r"no signature 'serve'; it has: train; choose one with"):
        add_model(tmp_path / "models", source, signature="serve")


def test_missing_signature_of_a_saved_model_is_found_without_tensorflow(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no signature 'serve'"):
        check(save(tmp_path, "saved model"), "serve")


def test_tflite_file_has_its_first_graph_without_a_signature(tmp_path: Path) -> None:
    contents = describe(save(tmp_path, "tflite")).contents
    assert contents.inputs == (TensorSpec("x", "FP32", (-1, 2)),)


def test_model_without_signatures_takes_none(tmp_path: Path) -> None:
    frozen = tmp_path / "m.pb"
    frozen.write_bytes(graph())
    with pytest.raises(InvalidInput, match="no signatures; omit --signature"):
        add_model(tmp_path / "models", frozen, signature="train")
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "m.pb").write_bytes(graph())
    (folder / "engine.toml").write_text('signature = "train"')
    fault = ModelDirectory(tmp_path / "models").get("m").fault
    assert "signature is for SavedModels and TFLite files, not for m.pb" in fault


def test_version_has_the_signature_of_its_engine_if_it_may(tmp_path: Path) -> None:
    models = tmp_path / "models"
    source = save(tmp_path, "tflite")
    folder = models / "m"
    folder.mkdir(parents=True)
    (folder / "engine.toml").write_text('signature = "train"')
    assert add_model(models, source, name="m", version="2").signature == "train"
    frozen = tmp_path / "f.pb"
    frozen.write_bytes(graph())
    assert add_model(models, frozen, name="m", version="3").signature == ""


def test_description_belongs_to_its_signature(tmp_path: Path) -> None:
    source = save(tmp_path, "tflite")
    models = tmp_path / "models"
    keys = {
        digests_of(add_model(models, source, signature=each, replace=True)).key
        for each in ("", "train")
    }
    assert len(keys) == 2
