"""Installation of engines, and the commands that add, list and inspect them."""

import errno
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from profiler.engines.cli import app
from profiler.installation import add_model, stage_engine, write_definition
from profiler.model_description import ModelDescription, describe
from profiler.zoo import recipes as zoo
from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.formats import model_files
from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE, digest
from synergai.models.manifest import pack
from tests.tiny_classifier import save_classifier
from tests.tiny_onnx import floats, new_model, save_model
from tests.tiny_tensorflow import graph, save_saved_model
from tests.tiny_tflite import save_sum


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A user's model file, which adds a weight to its input."""
    x, y = floats(["batch", 2], "x", "y")
    node, weight = helper.make_node("Add", ["x", "w"], ["y"]), np.array([1.0, 2.0], np.float32)
    return save_model(tmp_path / "plus.onnx", new_model([node], [x], [y], {"w": weight}))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory of models, which does not exist yet."""
    return tmp_path / "models"


def invoke(models: Path, *arguments: str) -> str:
    """Run a command of ``synergai engines``; return what it shows."""
    shown = CliRunner().invoke(app, [*arguments, "--models", str(models)])
    assert shown.exit_code == 0, shown.output
    return shown.output


def left_in(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir())


def test_added_model_is_an_engine_with_its_digest_recorded(models: Path, model: Path) -> None:
    definition = add_model(models, model, keys={"title": 'a "title"'})

    assert definition.name == "plus"
    assert definition.title == 'a "title"'
    assert definition.sha256 == digest(model)
    assert definition.file.read_bytes() == model.read_bytes()
    assert left_in(models) == ["plus"]


def test_tflite_file_is_added(tmp_path: Path, models: Path) -> None:
    definition = add_model(models, save_sum(tmp_path / "sum.tflite"))

    assert (definition.name, definition.backend, definition.fault) == ("sum", "tflite", "")


def test_tflite_file_is_inspected_as_far_as_its_runtime_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_sum(tmp_path / "sum.tflite")
    shown = CliRunner().invoke(app, ["inspect", str(model)]).output
    assert "FP32 [-1, 2]" in shown

    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    shown = " ".join(CliRunner().invoke(app, ["inspect", str(model)]).output.split())
    assert "inputs unknown outputs unknown" in shown
    assert "its tensors are shown where LiteRT is installed" in shown


def test_damaged_tflite_file_is_refused_with_its_name(tmp_path: Path) -> None:
    model = save_sum(tmp_path / "sum.tflite")
    model.write_bytes(model.read_bytes()[:200])
    with pytest.raises(InvalidInput, match=r"cannot load sum\.tflite: "):
        describe(model)


@pytest.mark.parametrize("named", ["", "saved_model.pb"])
def test_saved_model_is_added_with_all_its_files(tmp_path: Path, models: Path, named: str) -> None:
    source = save_saved_model(tmp_path / "my.model")
    (source / "variables").mkdir()
    (source / "variables" / "variables.index").write_bytes(b"weights")

    definition = add_model(models, source / named)

    assert (definition.name, definition.backend) == ("my.model", "tensorflow")
    assert definition.sha256 == definition.verified_digest() == digest(source)
    assert (definition.file / "variables" / "variables.index").read_bytes() == b"weights"


def test_frozen_graph_is_added_with_the_names_of_its_tensors(tmp_path: Path, models: Path) -> None:
    source = tmp_path / "sum.pb"
    source.write_bytes(graph())

    options = ("--inputs", "x:0", "--outputs", "y:0, x:0")
    invoke(models, "add", str(source), "--no-check", *options)
    definition = ModelDirectory(models).get("sum")
    assert (definition.inputs, definition.outputs) == (("x:0",), ("y:0", "x:0"))


def test_tensor_names_are_rejected_for_self_describing_models(models: Path, model: Path) -> None:
    with pytest.raises(InvalidInput, match="declares its own inputs and outputs"):
        add_model(models, model, inputs=["x"])


def test_model_file_with_a_generic_name_is_named_after_its_folder(
    tmp_path: Path, models: Path, model: Path
) -> None:
    source = tmp_path / "downloads" / "resnet50" / "model.onnx"
    source.parent.mkdir(parents=True)
    source.write_bytes(model.read_bytes())
    assert add_model(models, source).name == "resnet50"


def test_engine_of_the_same_name_is_replaced_only_on_request(models: Path, model: Path) -> None:
    add_model(models, model, keys={"title": "first"})

    with pytest.raises(InvalidInput, match="--replace"):
        add_model(models, model, keys={"title": "second"})
    assert ModelDirectory(models).get("plus").title == "first"

    assert add_model(models, model, keys={"title": "second"}, replace=True).title == "second"
    assert left_in(models) == ["plus"]


def test_model_is_added_as_a_version_beside_others(models: Path, model: Path) -> None:
    add_model(models, model, name="plus", keys={"title": "Sum"})
    second = add_model(models, model, name="plus", version="2")
    assert (second.name, second.fault, second.title) == ("plus/2", "", "Sum")
    assert second.file == models / "plus" / "2" / model.name
    assert second.sha256 == ModelDirectory(models).get("plus").sha256
    assert left_in(models / "plus") == ["2", "engine.toml", model.name]

    with pytest.raises(InvalidInput, match=r"version 2 of engine 'plus' already.*--replace"):
        add_model(models, model, name="plus", version="2")
    with pytest.raises(InvalidInput, match="version 1 of engine 'plus' is the model directly in"):
        add_model(models, model, name="plus", version="1")
    with pytest.raises(InvalidInput, match="is not a version"):
        add_model(models, model, name="plus", version="02")

    replaced = add_model(
        models, model, name="plus", version="2", keys={"title": "New"}, replace=True
    )
    assert replaced.title == "New"
    assert left_in(models) == ["plus"]


def test_new_engine_may_begin_with_any_version(models: Path, model: Path) -> None:
    assert add_model(models, model, name="plus", version="3").name == "plus/3"
    assert add_model(models, model, name="plus", version="1").name == "plus"
    assert left_in(models / "plus") == ["1", "3"]


def test_version_shares_what_is_not_about_one_model(models: Path, model: Path) -> None:
    add_model(models, model, name="plus")
    definition = models / "plus" / "engine.toml"
    definition.write_text(definition.read_text() + "max_batch = 4\naccuracy = 0.5\n")
    checked = []

    def check(directory: Path, name: str, _: object) -> None:
        checked.append(ModelDirectory(directory).get(name))

    added = add_model(models, model, name="plus", version="2", check=check)
    assert [each.fault for each in (*checked, added)] == ["", ""]
    assert (added.max_batch, added.accuracy) == (4, None)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_model_is_rejected_and_leaves_no_files(
    models: Path, model: Path, share: float
) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(InvalidInput, match=r"plus\.onnx"):
        add_model(models, model)

    assert left_in(models) == []


def test_outputs_that_are_no_tensors_are_pointed_out(tmp_path: Path, models: Path) -> None:
    added = invoke(models, "add", str(save_classifier(tmp_path / "m.onnx")), "--no-check")
    for output in ("probabilities", "values"):
        assert f"output '{output}' is not a tensor and is not served" in added


def move_weights(model: Path, *locations: str) -> None:
    """Let a model name files with its weights."""
    proto = onnx.load_model(model)
    tensor = proto.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    for location in locations:
        tensor.external_data.add(key="location", value=location)
    model.write_bytes(proto.SerializeToString())


def test_weights_in_a_second_file_belong_to_the_model(models: Path, model: Path) -> None:
    move_weights(model, "data/weights.bin")
    weights = model.parent / "data" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(bytes(64))

    assert describe(model).contents.external_data
    added = add_model(models, model)
    copied = added.file.parent / "data" / "weights.bin"
    assert copied.read_bytes() == bytes(64)
    assert added.verified_digest() == added.sha256
    packed = pack(added.file.parent, added.name, 1)
    assert packed.manifest.weights == ("data/weights.bin",)
    assert packed.manifest.model_sha256 == added.sha256
    assert pack(model, "plus", 1).manifest.model_sha256 == added.sha256
    copied.write_bytes(bytes(63) + b"x")
    with pytest.raises(EngineUnusable, match="is not the file that"):
        added.verified_digest()


def test_model_of_a_cache_of_links_is_added_with_its_weights(
    tmp_path: Path, models: Path, model: Path
) -> None:
    # Hugging Face keeps all files of a repository in one folder, and links to them.
    move_weights(model, "model.onnx_data")
    blobs, snapshot = tmp_path / "cache" / "blobs", tmp_path / "cache" / "snapshots" / "a1" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    model.rename(blobs / "0b5e")
    (blobs / "77f1").write_bytes(bytes(64))
    linked, weights = snapshot / "model.onnx", snapshot / "model.onnx_data"
    linked.symlink_to("../../../blobs/0b5e")
    weights.symlink_to("../../../blobs/77f1")

    added = add_model(models, linked, name="plus")
    assert (added.fault, left_in(added.file.parent)) == (
        "",
        ["engine.toml", "model.onnx", "model.onnx_data"],
    )
    assert not any(file.is_symlink() for file in added.file.parent.iterdir())
    assert pack(linked, "plus", 1).manifest.model_sha256 == added.sha256

    (tmp_path / "secret").write_bytes(bytes(64))
    weights.unlink()
    weights.symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="outside of its folder"):
        add_model(models, linked, name="other")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("../../etc/passwd", "outside of its folder"),
        ("missing.bin", "does not exist"),
        ("weights.bin\0", "cannot be the name of a file"),
        (256 * "w", "cannot be the name of a file"),
        ("weights\n.bin", "cannot be the name of a file"),
        (".weights.bin", "cannot be the name of a file"),
        (".", "cannot be the name of a file"),
        ("engine.toml", "names another file of an engine"),
        ("samples.npz", "names another file of an engine"),
        ("pipe", "is not a regular file"),
        ("loop", "does not exist"),
    ],
)
def test_weights_that_are_not_in_the_models_folder_are_rejected(
    models: Path, model: Path, location: str, reason: str
) -> None:
    move_weights(model, location)
    for name in (DEFINITION_FILE, SAMPLES_FILE):
        (model.parent / name).touch()
    os.mkfifo(model.parent / "pipe")
    (model.parent / "loop").symlink_to("loop")
    for use in (partial(add_model, models, model), partial(pack, model, "plus", 1)):
        with pytest.raises(InvalidInput, match=reason):
            use()
    assert left_in(models) == []


def test_model_in_too_many_files_is_rejected(
    models: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "MAX_WEIGHT_FILES", 1)
    move_weights(model, "a.bin", "b.bin")
    for name in ("a.bin", "b.bin"):
        (model.parent / name).write_bytes(bytes(64))
    with pytest.raises(InvalidInput, match="weights in 2 files; at most 1 "):
        add_model(models, model)


@pytest.mark.parametrize("name", ["", "../up", "a b", ".hidden"])
def test_unsafe_engine_name_is_rejected(models: Path, model: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid engine name"):
        add_model(models, model, name=name)


def test_file_whose_name_is_no_engine_name_is_rejected_with_advice(
    tmp_path: Path, models: Path, model: Path
) -> None:
    with pytest.raises(InvalidInput, match="give it one with --name"):
        add_model(models, model.rename(tmp_path / "my model.onnx"))


def test_missing_or_unsupported_file_is_rejected(tmp_path: Path, models: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.onnx' does not exist"):
        add_model(models, tmp_path / "absent.onnx")
    with pytest.raises(InvalidInput, match="is not a model"):
        add_model(models, tmp_path / "notes.txt")
    assert not models.exists()


def test_failed_installation_keeps_the_old_engine(tmp_path: Path) -> None:
    with stage_engine(tmp_path, "e") as folder:
        (folder / "old").touch()

    def fail() -> None:
        with stage_engine(tmp_path, "e", replace=True) as folder:
            (folder / "new").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert left_in(tmp_path) == ["e"]
    assert left_in(tmp_path / "e") == ["old"]


def test_installations_run_side_by_side(models: Path, model: Path) -> None:
    with stage_engine(models, "other") as folder:
        add_model(models, model)
        (folder / "made").touch()

    assert left_in(models) == ["other", "plus"]
    assert left_in(models / "other") == ["made"]


def test_full_disk_is_reported_for_the_model_directory(
    models: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(source: Path, _copy: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr(shutil, "copyfile", no_room)
    with pytest.raises(InvalidInput, match=r"cannot write to .*models: No space"):
        add_model(models, model)
    assert left_in(models) == []


def test_unwritable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InvalidInput, match="cannot write"):
        zoo.build("onnx_identity", tmp_path / "file")


def test_definition_round_trips_printable_strings(tmp_path: Path) -> None:
    title = 'quote " backslash \\ umlaut ä emoji \U0001f600'
    folder = tmp_path / "e"
    folder.mkdir()
    (folder / "m.onnx").write_bytes(b"m")
    write_definition(folder, {"title": title, "source": "", "accuracy": 0.5})

    definition = ModelDirectory(tmp_path).get("e")

    assert not definition.fault
    assert definition.title == title
    assert definition.accuracy == 0.5


@pytest.mark.parametrize("title", ["two\nlines", "delete \x7f", "escape \x1b[31m"])
def test_string_with_control_characters_is_not_written(tmp_path: Path, title: str) -> None:
    with pytest.raises(InvalidInput, match="the title contains control characters"):
        write_definition(tmp_path, {"title": title})
    assert not list(tmp_path.iterdir())


def test_description_has_the_models_inputs_and_outputs(model: Path) -> None:
    description = describe(model)

    contents = description.contents
    assert contents.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    assert contents.outputs == (TensorSpec("y", "FP32", (-1, 2)),)
    assert contents.format == "ONNX, opset 13, IR version 8"
    assert description.digest == digest(model)
    assert description.size_bytes == model.stat().st_size


def test_weights_listed_as_inputs_are_not_inputs(model: Path) -> None:
    proto = onnx.load_model(model)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    model.write_bytes(proto.SerializeToString())

    assert [spec.name for spec in describe(model).contents.inputs] == ["x"]


def test_list_shows_present_and_buildable_engines(models: Path, model: Path) -> None:
    add_model(models, model)
    (models / "empty").mkdir()

    shown = invoke(models, "list")
    assert "plus" in shown
    assert "no model file" in " ".join(shown.split())
    assert "not built" not in shown
    assert "not built" in invoke(models, "list", "--catalogue")


def test_inspect_shows_an_engine_by_name_and_a_file_by_path(models: Path, model: Path) -> None:
    add_model(models, model, name="mine")

    assert f'"digest": "{digest(model)}"' in invoke(models, "inspect", "mine", "--json")
    by_path = invoke(models, "inspect", str(model))
    assert "FP32 [-1, 2]" in by_path
    assert re.search(r"weights +in the file", by_path)


def test_weights_of_a_saved_model_are_in_its_folder(tmp_path: Path, models: Path) -> None:
    shown = invoke(models, "inspect", str(save_saved_model(tmp_path / "saved")))
    assert re.search(r"weights +in the folder", shown)


def test_engine_that_a_check_rejects_is_not_installed(tmp_path: Path, models: Path) -> None:
    checked: list[str] = []

    def check(models: Path, name: str, model: ModelDescription) -> None:
        assert ModelDirectory(models).get(name).verified_digest() == model.digest
        checked.append(name)
        raise EngineUnusable("it cannot be loaded")

    source = save_sum(tmp_path / "sum.tflite")
    with pytest.raises(EngineUnusable, match="it cannot be loaded"):
        add_model(models, source, check=check)
    assert checked == ["sum"]
    assert not list((models).iterdir())
