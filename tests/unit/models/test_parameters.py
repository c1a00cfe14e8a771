"""Numbers of weights in model files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from synergai.models.formats.onnx_file import read_onnx
from synergai.models.formats.tensorflow_file import read_frozen_graph, read_saved_model
from synergai.models.formats.tflite_file import read_tflite
from tests.tiny_tensorflow import (
    FLOAT,
    FLOAT_TYPE,
    INT,
    constant,
    function_library,
    graph,
    node,
    save_saved_model,
    saved_model,
    square,
    variable,
)
from tests.tiny_tflite import save_square, save_sum

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import DTypeLike

X, Y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in ("x", "y"))


def stored(name: str, shape: Sequence[int], dtype: DTypeLike = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def onnx_parameters(
    tmp_path: Path,
    nodes: Sequence[onnx.NodeProto] = (),
    initializers: Sequence[TensorProto] = (),
) -> int | None:
    """Return the number of weights of a model of y = -x and further nodes."""
    nodes = [helper.make_node("Neg", ["x"], ["y"]), *nodes]
    described = helper.make_graph(nodes, "g", [X], [Y], initializers)
    opset = helper.make_opsetid("", 13)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(described, opset_imports=[opset], ir_version=8), path)
    return read_onnx(path).parameters


def test_onnx_initialisers_of_floats_are_weights_and_shapes_are_not(tmp_path: Path) -> None:
    initializers = [
        stored("w", (3, 4)),
        stored("half", (5,), np.float16),
        stored("shape", (2,), np.int64),
        stored("axes", (1,), np.int32),
    ]
    assert onnx_parameters(tmp_path, initializers=initializers) == 17


def test_onnx_constant_nodes_are_weights(tmp_path: Path) -> None:
    constants = [
        helper.make_node("Constant", [], ["w"], value=stored("", (3, 4))),
        helper.make_node("Constant", [], ["s"], value=stored("", (2,), np.int64)),
        helper.make_node("Constant", [], ["f"], value_floats=[1.0, 2.0]),
        helper.make_node("Constant", [], ["i"], value_ints=[1, 2, 3]),
        helper.make_node("Constant", [], ["e"], value_float=1e-5),
    ]
    assert onnx_parameters(tmp_path, constants) == 12 + 2 + 1


def test_onnx_weights_in_subgraphs_are_counted(tmp_path: Path) -> None:
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [3])
    inner = helper.make_node("Constant", [], ["r"], value=stored("", (3,)))
    branch = helper.make_graph([inner], "inner", [], [result])
    other = helper.make_graph(
        [helper.make_node("Identity", ["k"], ["r"])], "other", [], [result], [stored("k", (3,))]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=stored("", (), np.bool_)),
        helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=other),
    ]
    assert onnx_parameters(tmp_path, nodes) == 6


def test_onnx_quantised_weights_are_counted_without_their_zero_points(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["dw"]),
        helper.make_node("DequantizeLinear", ["bias", "scale"], ["db"]),
    ]
    initializers = [
        stored("w", (4, 4), np.int8),
        stored("bias", (4,), np.int32),
        stored("zero", (), np.int8),
        stored("scale", ()),
        stored("other", (2, 2), np.uint8),
    ]
    assert onnx_parameters(tmp_path, nodes, initializers) == 16 + 4 + 1 + 4


def test_onnx_weights_in_other_files_are_counted(tmp_path: Path) -> None:
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1000, 1000])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    constant_node = helper.make_node("Constant", [], ["w"], value=weights)
    assert onnx_parameters(tmp_path, initializers=[weights]) == 1_000_000
    assert onnx_parameters(tmp_path, [constant_node]) == 1_000_000
    assert read_onnx(tmp_path / "model.onnx").external_data


def test_tflite_weights_are_floats_and_quantised_integers(tmp_path: Path) -> None:
    matrix = save_sum(tmp_path / "matrix.tflite", width=4, matrix=True)
    assert read_tflite(matrix).parameters == 16
    assert read_tflite(save_square(tmp_path / "square.tflite")).parameters == 0


def frozen_parameters(tmp_path: Path, content: bytes) -> int | None:
    path = tmp_path / "graph.pb"
    path.write_bytes(content)
    return read_frozen_graph(path).parameters


def test_frozen_graphs_constants_of_floats_are_weights(tmp_path: Path) -> None:
    assert frozen_parameters(tmp_path, graph(matrix=3)) == 9
    assert frozen_parameters(tmp_path, square()) == 0
    assert frozen_parameters(tmp_path, graph() + constant("q", 11, 5, 5)) == 25


def test_weights_of_called_functions_are_counted_once(tmp_path: Path) -> None:
    library = function_library(
        used=constant("w", FLOAT, 2, 3) + constant("axis", INT, 1),
        unused=constant("w", FLOAT, 100),
    )
    calls = node("a", "used", "x") + node("b", "used", "x")
    assert frozen_parameters(tmp_path, graph() + calls + library) == 6


def saved_parameters(tmp_path: Path, content: bytes) -> int | None:
    folder = save_saved_model(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(saved_model(content))
    return read_saved_model(folder).parameters


def test_saved_models_weights_are_the_variables_that_its_signature_uses(tmp_path: Path) -> None:
    content = (
        node("x", "Placeholder", dtype=FLOAT_TYPE)
        + variable("w", FLOAT, 4, 5)
        + variable("step", 9)
        + variable("copy", FLOAT, 4, 5)
        + node("y", "MatMul", "x", "w", T=FLOAT_TYPE)
    )
    assert saved_parameters(tmp_path, content) == 20


def test_number_of_weights_is_unknown_if_the_shape_of_a_variable_is(tmp_path: Path) -> None:
    content = variable("w", FLOAT, -1, 5) + node("y", "Neg", "w", T=FLOAT_TYPE)
    assert saved_parameters(tmp_path, content) is None


@pytest.mark.parametrize("operation", ["Add", "StatefulPartitionedCall"])
def test_graph_without_weights_has_none(tmp_path: Path, operation: str) -> None:
    content = node("x", "Placeholder", dtype=FLOAT_TYPE) + node("y", operation, "x", "x")
    assert saved_parameters(tmp_path, content) == 0
