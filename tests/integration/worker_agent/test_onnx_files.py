"""Models with external weights, inside and outside of their folder."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from synergai.errors import EngineUnusable
from tests.tiny_onnx import floats, new_model
from worker_agent.backends.onnxruntime import OnnxRuntimeBackend


def weights_at(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def save(folder: Path, weights: TensorProto, *, in_branch: bool = False) -> Path:
    x, y = floats([4], "x", "y")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    model = new_model([add], [x], [y], [weights])
    if in_branch:
        branch = helper.make_graph([add], "branch", [], [y], [weights])
        node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
        condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
        model = new_model([node], [x, condition], [y])
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_weights_beside_the_model_are_used(tmp_path: Path) -> None:
    model = save(tmp_path / "m", weights_at("w.bin"))
    np.arange(4, dtype=np.float32).tofile(model.parent / "w.bin")
    (result,) = OnnxRuntimeBackend(model, 1).run({"x": np.ones(4, np.float32)}, ["y"])
    assert result.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("in_branch", [False, True])
@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "a/../../secret"])
def test_weights_outside_of_the_folder_are_refused(
    tmp_path: Path, location: str, in_branch: bool
) -> None:
    (tmp_path / "secret").write_bytes(bytes(16))
    model = save(tmp_path / "m", weights_at(location), in_branch=in_branch)
    (model.parent / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(EngineUnusable, match="outside of its folder"):
        OnnxRuntimeBackend(model, 1)


def test_file_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\xff\xff\xff\xff")
    with pytest.raises(EngineUnusable, match="damaged, or not an ONNX model"):
        OnnxRuntimeBackend(file, 1)
