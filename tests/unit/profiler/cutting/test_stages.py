from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from profiler.cutting.stages import cut_engine, split_engine
from profiler.installation import add_model, stage_engine, write_definition
from profiler.model_description import ModelDescription
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.samples import write_samples
from synergai.names import engine_of_stage, is_stage, stage_name
from tests import tiny_onnx

pytestmark = pytest.mark.usefixtures("cuts_here")
NAMES = ["net.s0-1", "net.s1-3", "net.s3-4"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    with stage_engine(tmp_path / "models", "net") as folder:
        save_model(folder / "model.onnx", "Relu")
        write_samples(folder, {"x": np.ones((3, 1, 4), np.float32)})
        processing = {"preprocess": "mobilenet", "postprocess": "classes"}
        write_definition(folder, {"title": "a net", "max_batch": 2, **processing})
    return tmp_path / "models"


def save_model(path: Path, last: str) -> None:
    """Write a model of operators in a row, with the tensors x, t1, t2 and so on."""
    kinds = ("Relu", "Neg", "Sigmoid", last)
    names = ["x", *(f"t{number + 1}" for number in range(len(kinds)))]
    nodes = [
        helper.make_node(kind, [taken], [given])
        for kind, (taken, given) in zip(kinds, pairwise(names), strict=True)
    ]
    ends = tiny_onnx.floats(["rows", 4], names[0], names[-1])
    tiny_onnx.save_model(path, tiny_onnx.new_model(nodes, ends[:1], ends[1:]))


def unchecked(_models: Path, _name: str, _model: ModelDescription) -> None:
    pass


def test_stages_are_engines_with_the_settings_of_their_part(models: Path) -> None:
    checked = []

    def check(directory: Path, name: str, model: ModelDescription) -> None:
        definition = ModelDirectory(directory).get(name)
        assert definition.verified_digest() == model.digest
        checked.append(name)

    stages = split_engine(cut_engine(models, "net"), models, ["t1", "t3"], check)
    assert [stage.name for stage in stages] == NAMES == checked
    assert not any(stage.fault for stage in stages)
    first, middle, last = stages
    assert [(each.preprocess, each.postprocess) for each in stages] == [
        ("mobilenet", ""),
        ("", ""),
        ("", "classes"),
    ]
    assert first.samples is not None
    assert middle.samples is None is last.samples
    assert {stage.max_batch for stage in stages} == {2}
    whole = ModelDirectory(models).get("net")
    assert {stage.stage_of for stage in stages} == {whole.verified_digest()}
    assert len({stage.verified_digest() for stage in (*stages, whole)}) == 4


def test_stages_of_the_same_model_have_the_same_digests(models: Path) -> None:
    first, again = (
        split_engine(cut_engine(models, "net"), models, ["t1"], unchecked, replace=replace)
        for replace in (False, True)
    )
    assert [each.sha256 for each in first] == [each.sha256 for each in again]


def test_no_stage_is_installed_if_one_fails_its_check(models: Path) -> None:
    def check(_models: Path, name: str, _model: ModelDescription) -> None:
        if name == NAMES[-1]:
            raise InvalidInput("it does not load")

    with pytest.raises(InvalidInput, match="it does not load"):
        split_engine(cut_engine(models, "net"), models, ["t1", "t3"], check)
    assert [each.name for each in ModelDirectory(models).engines()] == ["net"]


def test_an_existing_stage_is_replaced_on_request_only(models: Path) -> None:
    split_engine(cut_engine(models, "net"), models, ["t1"], unchecked)
    with pytest.raises(InvalidInput, match=r"already; replace it with --replace$"):
        split_engine(cut_engine(models, "net"), models, ["t1"], unchecked)


@pytest.mark.parametrize("declared", [True, False])
def test_stages_of_a_former_model_are_faulty(
    models: Path, tmp_path: Path, *, declared: bool
) -> None:
    split_engine(cut_engine(models, "net"), models, ["t1"], unchecked)
    save_model(tmp_path / "other.onnx", "Tanh")
    if declared:
        add_model(models, tmp_path / "other.onnx", name="net", replace=True)
    else:
        (tmp_path / "other.onnx").replace(models / "net" / "model.onnx")
    whole, *stages = ModelDirectory(models).engines()
    assert not whole.fault
    for stage in stages:
        assert "stage of another model than engine 'net' has now" in stage.fault
        assert "synergai engines split net --at TENSOR… --replace" in stage.fault


def test_a_directory_needs_no_whole_engine_for_its_stages(models: Path) -> None:
    split_engine(cut_engine(models, "net"), models, ["t1"], unchecked)
    (models / "net").rename(models.parent / "elsewhere")
    assert not any(each.fault for each in ModelDirectory(models).engines())


def test_the_name_of_a_stage_is_for_stages_only(models: Path) -> None:
    (models / "net").rename(models / "net.s0-1")
    (engine,) = ModelDirectory(models).engines()
    assert "its name is that of a stage" in engine.fault
    (models / "net.s0-1").rename(models / "net")
    write_definition(models / "net", {"stage_of": "0" * 64})
    (engine,) = ModelDirectory(models).engines()
    assert "is not the name of a stage" in engine.fault


def test_versions_have_stages_of_their_own(models: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "other.onnx", "Tanh")
    add_model(models, tmp_path / "other.onnx", name="net", version="2")
    stages = [
        *split_engine(cut_engine(models, "net"), models, ["t1"], unchecked),
        *split_engine(cut_engine(models, "net/2"), models, ["t1"], unchecked),
    ]
    assert [each.name for each in stages] == [
        *("net.s0-1", "net.s1-4"),
        *("net.s0-1/2", "net.s1-4/2"),
    ]
    assert not any(each.fault for each in ModelDirectory(models).engines())


def test_a_stage_and_an_engine_of_another_format_cannot_be_cut(models: Path) -> None:
    split_engine(cut_engine(models, "net"), models, ["t1"], unchecked)
    with pytest.raises(InvalidInput, match="is a stage"):
        cut_engine(models, "net.s0-1")
    (models / "lite").mkdir()
    (models / "lite" / "model.tflite").write_bytes(b"lite")
    with pytest.raises(InvalidInput, match="only ONNX models can"):
        cut_engine(models, "lite")


def test_names_of_stages_lead_to_their_engine() -> None:
    assert stage_name("net/2", 3, 12) == "net.s3-12/2"
    assert engine_of_stage("net.s3-12/2") == "net/2"
    assert is_stage("net.s3-12/2")
    assert not any(map(is_stage, ("net", "net/2", "net.s3", "net.s3-x", ".s3-4")))
