"""Quantisation of ONNX models to 8-bit integers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from profiler.zoo.onnx_graph import OnnxGraph, ValueInfo, write_model
from profiler.zoo.variants import quantise
from synergai.errors import InvalidInput


def a_model(operator: str) -> onnx.ModelProto:
    graph = OnnxGraph("other", 11)
    graph.node(operator, ["x"], "y")
    return graph.model({"x": ValueInfo(shape=["n", 2])}, {"y": ValueInfo(shape=["n", 2])})


def test_model_of_an_earlier_operator_set_is_quantised(tmp_path: Path) -> None:
    graph = OnnxGraph("early", 11)
    graph.weight("w", np.eye(2, dtype=np.float32))
    graph.node("MatMul", ["x", "w"], "y")
    model = graph.model({"x": ValueInfo(shape=["n", 2])}, {"y": ValueInfo(shape=["n", 2])})
    write_model(tmp_path / "early.onnx", model)
    samples = [{"x": np.array([[i, -i]], np.float32)} for i in range(3)]
    quantise(tmp_path / "early.onnx", tmp_path / "int8.onnx", samples)
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    [answer] = session.run(None, {"x": np.array([[1, 2]], np.float32)})
    assert answer == pytest.approx(np.array([[1, 2]], np.float32), abs=0.05)


@pytest.mark.parametrize("shape", [(2,), (1, 2), (1,), (1, 1)])
def test_bias_of_any_shape_is_quantised(tmp_path: Path, shape: tuple[int, ...]) -> None:
    graph = OnnxGraph("biased", 11)
    graph.node("Cast", ["x"], "f", to=onnx.TensorProto.FLOAT)
    graph.weight("w", np.eye(2, dtype=np.float32))
    graph.weight("b", np.full(shape, 3, np.float32))
    graph.node("Gemm", ["f", "w", "b"], "y")
    whole = ValueInfo(element=onnx.TensorProto.INT32, shape=["n", 2])
    model = graph.model({"x": whole}, {"y": ValueInfo(shape=["n", 2])})
    write_model(tmp_path / "biased.onnx", model)
    samples = [{"x": np.array([[i, -i]], np.int32)} for i in range(8)]
    quantise(tmp_path / "biased.onnx", tmp_path / "int8.onnx", samples)
    session = onnxruntime.InferenceSession(tmp_path / "int8.onnx")
    [answer] = session.run(None, {"x": np.array([[1, -2]], np.int32)})
    assert answer == pytest.approx(np.array([[4, 1]], np.float32), abs=0.1)


def test_model_that_cannot_gain_is_not_quantised(tmp_path: Path) -> None:
    write_model(tmp_path / "relu.onnx", a_model("Relu"))
    samples = [{"x": np.array([[1, 2]], np.float32)}]
    with pytest.raises(InvalidInput, match="has no convolution or matrix product"):
        quantise(tmp_path / "relu.onnx", tmp_path / "int8.onnx", samples)
    with pytest.raises(InvalidInput, match="no samples to calibrate on"):
        quantise(tmp_path / "relu.onnx", tmp_path / "int8.onnx", [])
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(InvalidInput, match=r"junk\.onnx cannot be quantised"):
        quantise(tmp_path / "junk.onnx", tmp_path / "int8.onnx", samples)
