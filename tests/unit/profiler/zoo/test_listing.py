import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from profiler.zoo import image_engines
from profiler.zoo import recipes as zoo
from profiler.zoo.architectures import MobileNet
from profiler.zoo.image_engines import export_model
from profiler.zoo.listing import PUBLISHED, EngineListing, list_engines
from profiler.zoo.recipes import RECIPES
from synergai.cli import main as cli
from synergai.cli import output
from synergai.errors import InternalError, NotFound
from tests.tiny_tensorflow import needs_tensorflow


def rows(models: Path) -> dict[str, EngineListing]:
    return {row.name: row for row in list_engines(models)}


def test_unbuilt_engines_are_listed(tmp_path: Path) -> None:
    found = rows(tmp_path / "nowhere")

    assert set(found) == set(RECIPES)
    assert {each.name for each in PUBLISHED} == {
        name for name, recipe in RECIPES.items() if recipe.preprocess
    }
    assert {row.state for row in found.values()} == {"not built"}
    assert found["tfl_mobilenet"].backend == "tflite"
    # Nobody has measured weights that are not there.
    assert {row.accuracy for row in found.values()} == {None}


def test_present_and_unusable_engines_are_listed_without_the_published_accuracy(
    tmp_path: Path,
) -> None:
    zoo.build("onnx_identity", tmp_path)
    (tmp_path / "onnx_identity").rename(tmp_path / "onnx_ssd_op8")
    (tmp_path / "empty").mkdir()

    found = rows(tmp_path)

    ssd = found["onnx_ssd_op8"]
    assert (ssd.state, ssd.accuracy) == ("present", None)
    assert ssd.size_bytes == (tmp_path / "onnx_ssd_op8" / "model.onnx").stat().st_size
    assert (found["empty"].state, found["empty"].size_bytes) == ("unusable", None)
    assert "no model" in found["empty"].fault
    assert [row.name for row in list_engines(tmp_path)] == sorted(found)


def test_file_that_was_replaced_in_place_is_a_fault_where_the_user_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo.build("onnx_identity", tmp_path)
    with (tmp_path / "onnx_identity" / "model.onnx").open("ab") as file:
        file.write(b"\x3a\x00")  # an empty part of the graph

    shown = rows(tmp_path)["onnx_identity"]

    assert shown.state == "unusable"
    assert shown.fault.startswith("model.onnx is not the file that engine.toml asks for")
    with pytest.raises(SystemExit):
        cli.main(["engines", "inspect", "onnx_identity", "--models", str(tmp_path)])
    assert "not used" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"text", None], ids=["another file", "truncated"])
def test_damaged_file_without_a_digest_is_a_fault(tmp_path: Path, content: bytes | None) -> None:
    zoo.build("onnx_identity", tmp_path)
    model = tmp_path / "onnx_identity" / "model.onnx"
    definition = model.with_name("engine.toml")
    lines = definition.read_text().splitlines(keepends=True)
    definition.write_text("".join(line for line in lines if not line.startswith("sha256")))
    assert rows(tmp_path)["onnx_identity"].state == "present"

    model.write_bytes(model.read_bytes()[:-10] if content is None else content)

    shown = rows(tmp_path)["onnx_identity"]
    assert (shown.state, shown.fault) == ("unusable", "model.onnx is damaged, or not an ONNX model")


def test_names_are_not_truncated_on_a_terminal_of_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    terminal = Console(file=shown, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "Console", lambda: terminal)

    with pytest.raises(SystemExit):
        cli.main(["engines", "list", "--models", str(tmp_path), "--catalogue"])

    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert set(RECIPES) <= {line.split(" ")[0] for line in lines}


def test_engines_that_are_not_built_are_listed_on_request_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["engines", "list", "--models", str(tmp_path)])
    assert capsys.readouterr().out.startswith(f"no engine in {tmp_path}; add a model file")


def test_json_list_has_the_origin_of_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["engines", "list", "--models", str(tmp_path), "--catalogue", "--json"])

    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert "not trained" in entries["onnx_resnet50_op8"]["source"]


def test_every_image_engine_accepts_encoded_images() -> None:
    for recipe in RECIPES.values():
        architecture = recipe.options.get("architecture", "")
        assert recipe.preprocess == architecture
        assert recipe.postprocess == {"": "", "ssd": "boxes"}.get(str(architecture), "classes")


def test_build_without_tensorflow_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_engines, "find_spec", lambda _: None)

    with pytest.raises(NotFound, match=r"pip install 'WHEEL\[engines,tensorflow\]'"):
        zoo.build("tf_ssd", tmp_path)

    assert list(tmp_path.iterdir()) == []


@needs_tensorflow
def test_failure_of_the_export_process_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_engines, "WRITER", "profiler.zoo.no_such_writer")
    with pytest.raises(InternalError, match=r"cannot write the model: .*No module named") as caught:
        export_model(MobileNet(), {}, "tflite", tmp_path / "model.tflite")

    assert "\n" not in str(caught.value)
