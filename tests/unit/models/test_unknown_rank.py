"""Tensors of unknown rank, which take tensors of any number of dimensions."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.schema_py_generated import TensorType
from onnx import helper

from gateway.calls.servicers.engines import engine_config, engine_metadata
from profiler.model_description import describe
from synergai.client.casting import cast_value
from synergai.domain import UNKNOWN_RANK, Engine, EngineName, TensorSpec
from synergai.errors import InvalidInput
from synergai.models.directory import EngineDefinition
from synergai.models.formats.inspect import unranked_tensors
from synergai.models.samples import Synthesiser, load_samples, write_samples
from synergai.wire.converters import engine_from_metadata, tensor_from_proto, tensor_to_proto
from synergai.wire.validation import shape_matches
from tests.tiny_onnx import floats, new_model, save_model
from tests.tiny_tensorflow import FLOAT_TYPE, node, saved_model
from tests.tiny_tflite import save_reshape
from worker_agent.host.batches import check_batchable

ANY = TensorSpec("x", "FP32", UNKNOWN_RANK)
SCALAR = TensorSpec("s", "FP32", ())


def save_onnx(path: Path) -> Path:
    """Save y = x + s, with x and y of unknown rank and s a scalar."""
    x, y = floats(None, "x", "y")
    node = helper.make_node("Add", ["x", "s"], ["y"])
    return save_model(path, new_model([node], [x, *floats([], "s")], [y]))


def save_frozen(path: Path) -> Path:
    path.write_bytes(
        node("x", "Placeholder", dtype=FLOAT_TYPE) + node("y", "Neg", "x", T=FLOAT_TYPE)
    )
    return path


def save_folder(path: Path) -> Path:
    path.mkdir()
    (path / "saved_model.pb").write_bytes(saved_model(b"", shape=None))
    return path


def save_tflite(path: Path) -> Path:
    return save_reshape(path, TensorType.FLOAT32, [], [-1])


@pytest.mark.parametrize(
    ("save", "file"),
    [
        (save_onnx, "m.onnx"),
        (save_frozen, "m.pb"),
        (save_folder, "saved"),
        (save_tflite, "m.tflite"),
    ],
)
def test_file_of_any_format_declares_an_unknown_rank(
    tmp_path: Path, save: Callable[[Path], Path], file: str
) -> None:
    contents = describe(save(tmp_path / file)).contents
    assert [spec.shape for spec in contents.inputs if spec.name != "s"] == [UNKNOWN_RANK]


def test_scalar_of_an_onnx_file_is_none_of_unknown_rank(tmp_path: Path) -> None:
    model = save_onnx(tmp_path / "m.onnx")
    assert unranked_tensors(model) == {"x", "y"}
    assert describe(model).contents.inputs[1] == SCALAR


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (1, 2, 3, 4), (1,) * 64])
def test_tensor_of_any_rank_suits(shape: tuple[int, ...]) -> None:
    assert shape_matches(shape, UNKNOWN_RANK)


@pytest.mark.parametrize("shape", [(-1,), (2, -2), (1,) * 65])
def test_impossible_shape_suits_no_unknown_rank(shape: tuple[int, ...]) -> None:
    assert not shape_matches(shape, UNKNOWN_RANK)


def test_metadata_names_tensors_of_unknown_rank_and_gives_them_one_dynamic_dimension() -> None:
    engine = Engine(
        name=EngineName("e"),
        version="1",
        backend="onnxruntime",
        inputs=(ANY, SCALAR),
        outputs=(ANY,),
    )
    message = engine_metadata(engine, ["1"])
    assert [list(each.shape) for each in (*message.inputs, *message.outputs)] == [[-1], [], [-1]]
    assert engine_from_metadata(message).inputs == engine.inputs
    config = engine_config(engine)
    assert [list(each.dims) for each in config.input] == [[-1], []]
    assert [list(each.dims) for each in config.output] == [[-1]]
    assert "x" in config.parameters["unknown_rank"].string_value


def test_unknown_rank_travels_between_agent_and_gateway_and_no_other_negative_size() -> None:
    assert tensor_from_proto(tensor_to_proto(ANY)) == ANY
    for shape in ((-3,), (-2, 1), (1, -2)):
        with pytest.raises(InvalidInput, match="invalid shape"):
            tensor_from_proto(tensor_to_proto(TensorSpec("x", "FP32", shape)))


def test_several_ranks_are_tried() -> None:
    candidates = list(Synthesiser([ANY]).candidates())
    found = [Synthesiser([ANY]).generate(each, 1)[0]["x"].shape for each in candidates]
    assert {len(shape) for shape in found} == {0, 1, 2, 3, 4}


def test_samples_of_unknown_rank_are_along_the_leading_axis(tmp_path: Path) -> None:
    write_samples(tmp_path, {"x": np.ones((4, 2, 3), np.float32)})
    samples = tmp_path / "samples.npz"
    definition = EngineDefinition(name=EngineName("e"), file=tmp_path, samples=samples)
    found = load_samples(definition, [ANY]).inputs
    assert [each["x"].shape for each in found] == [(2, 3)] * 4


def test_engine_of_unknown_rank_may_have_batches() -> None:
    engine = Engine(
        name=EngineName("e"), version="1", backend="b", inputs=(ANY,), outputs=(ANY,), max_batch=2
    )
    check_batchable(engine)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_client_changes_no_rank(shape: tuple[int, ...]) -> None:
    assert cast_value(np.ones(shape), ANY).shape == shape
