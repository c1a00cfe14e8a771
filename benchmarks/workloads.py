"""Workloads: an engine, and one serialised request for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from profiler.zoo.recipes import build, is_built
from synergai.models.formats.model_files import DEFINITION_FILE
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

WIDTH: Final = 1024
LAYERS: Final = 12
"""Of `layers`: 50 MB of weights, more than a core's caches hold."""
IMAGE_SHAPE: Final = (1, 3, 224, 224)
"""Shape of MobileNet's input; 602,112 bytes in FP32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One request and the check of its result.

    Attributes:
        engine: name of the engine, a folder of the model directory.
        request: serialised ``ModelInferRequest``.
        is_correct: checks the first output, an FP32 array.
        build: builds the engine in a model directory unless it exists.
    """

    engine: str
    request: bytes
    is_correct: Callable[[Floats], bool]
    build: Callable[[Path], None]


def identity() -> Workload:
    """Return a request of one element to an identity model."""
    return Workload(
        engine="onnx_identity",
        request=request_of("onnx_identity", "x", np.ones(1, np.float32)),
        is_correct=lambda values: values.tolist() == [1.0],
        build=lambda models: _build_from_zoo("onnx_identity", models),
    )


def mobilenet() -> Workload:
    """Return a request to MobileNet with one image of noise."""
    image = np.random.default_rng(0).uniform(-1, 1, IMAGE_SHAPE).astype(np.float32)
    return Workload(
        engine="onnx_mobilenet_op11",
        request=request_of("onnx_mobilenet_op11", "input:0", image),
        is_correct=lambda values: values.size == 1001 and abs(float(values.sum()) - 1.0) < 1e-3,
        build=lambda models: _build_from_zoo("onnx_mobilenet_op11", models),
    )


def large() -> Workload:
    """Return a request of one image to a model that returns its first element."""
    values = np.arange(np.prod(IMAGE_SHAPE), dtype=np.float32)
    return Workload(
        engine="first_element",
        request=request_of("first_element", "x", values),
        is_correct=lambda values: values.tolist() == [0.0],
        build=_build_first_element,
    )


def layers(max_batch: int = 1) -> Workload:
    """Return a request of one row to dense layers, whose weights are read once per batch.

    Args:
        max_batch: maximum batch size of the engine, part of its name; 1 disables batching.
    """
    engine = f"layers_{max_batch}"
    row = np.random.default_rng(0).normal(size=(1, WIDTH)).astype(np.float32)
    expected = row
    for weights in _weights():
        expected = expected @ weights
    return Workload(
        engine=engine,
        request=request_of(engine, "x", row),
        # The order of summation differs between a batch and a single row.
        is_correct=lambda values: np.allclose(values, expected.ravel(), rtol=1e-3, atol=1e-3),
        build=lambda models: _build_layers(models / engine, max_batch),
    )


def accelerated(engine: str, first_row_s: float, row_s: float, max_batch: int) -> Workload:
    """Return a request of one row to an emulated engine that takes these times, and echoes it."""
    return Workload(
        engine=engine,
        request=request_of(engine, "x", np.ones(1, np.float32)),
        is_correct=lambda values: values.tolist() == [1.0],
        build=lambda models: _build_accelerated(models / engine, first_row_s, row_s, max_batch),
    )


def _build_accelerated(folder: Path, first_row_s: float, row_s: float, max_batch: int) -> None:
    folder.mkdir(parents=True)
    (folder / DEFINITION_FILE).write_text(
        f'backend = "emulated"\nfile = "model.toml"\nmax_batch = {max_batch}\n'
    )
    (folder / "model.toml").write_text(
        "[[configurations]]\nthreads = 1\nsetup_s = 0.0\n"
        f"query_s = {first_row_s}\nrow_s = {row_s}\n"
    )


def request_of(engine: str, tensor: str, values: Floats) -> bytes:
    """Return a serialised request with one input tensor."""
    request = oip.ModelInferRequest(model_name=engine)
    request.inputs.add(name=tensor, datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request.SerializeToString()


def _build_from_zoo(engine: str, models: Path) -> None:
    if not is_built(engine, models):
        build(engine, models)


def _build_first_element(models: Path) -> None:
    take = helper.make_node("Gather", ["x", "first"], ["y"])
    graph = helper.make_graph(
        [take],
        "first_element",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [helper.make_tensor("first", TensorProto.INT64, [1], [0])],
    )
    _save(graph, models / "first_element")


def _weights() -> Iterator[Floats]:
    """Yield the weights of the layers, scaled to preserve the norm of a row."""
    generator = np.random.default_rng(1)
    for _ in range(LAYERS):
        yield generator.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)


def _build_layers(folder: Path, max_batch: int) -> None:
    ends = ["x", *(f"h{number}" for number in range(1, LAYERS)), "y"]
    names = [f"w{number}" for number in range(LAYERS)]
    nodes = [
        helper.make_node("MatMul", [before, name], [after])
        for name, (before, after) in zip(names, pairwise(ends), strict=True)
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "y")
    )
    weights = [numpy_helper.from_array(*each) for each in zip(_weights(), names, strict=True)]
    _save(helper.make_graph(nodes, "layers", [x], [y], weights), folder)
    (folder / DEFINITION_FILE).write_text(f"max_batch = {max_batch}\n")


def _save(graph: onnx.GraphProto, folder: Path) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
