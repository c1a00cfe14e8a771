"""What every contender is asked: an engine, and one request to it, serialised once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from engines.catalogue import build, is_built
from synergai.oip import inference_pb2 as oip

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

PHOTOGRAPH: Final = (1, 3, 224, 224)
"""Shape of the tensor that MobileNet takes; 602,112 bytes of FP32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One request, and how its answer is recognised.

    Attributes:
        engine: the engine that is asked, a folder of the model directory.
        request: a ``ModelInferRequest`` on the wire.
        right: whether the first output, as FP32 values, answers that request.
        build: puts the engine into a model directory unless it is there.
    """

    engine: str
    request: bytes
    right: Callable[[Floats], bool]
    build: Callable[[Path], None]


def identity() -> Workload:
    """One element in, the same out."""
    return Workload(
        engine="onnx_identity",
        request=_request("onnx_identity", "x", np.ones(1, np.float32)),
        right=lambda values: values.tolist() == [1.0],
        build=lambda models: _from_catalogue("onnx_identity", models),
    )


def photograph() -> Workload:
    """MobileNet on one photograph's worth of noise."""
    image = np.random.default_rng(0).uniform(-1, 1, PHOTOGRAPH).astype(np.float32)
    return Workload(
        engine="onnx_mobilenet_op11",
        request=_request("onnx_mobilenet_op11", "input:0", image),
        right=lambda values: values.size == 1001 and abs(float(values.sum()) - 1.0) < 1e-3,
        build=lambda models: _from_catalogue("onnx_mobilenet_op11", models),
    )


def large() -> Workload:
    """A photograph's bytes in, one element out, and hardly any arithmetic between."""
    values = np.arange(np.prod(PHOTOGRAPH), dtype=np.float32)
    return Workload(
        engine="first_element",
        request=_request("first_element", "x", values),
        right=lambda answer: answer.tolist() == [0.0],
        build=_build_first_element,
    )


def _request(engine: str, tensor: str, values: Floats) -> bytes:
    request = oip.ModelInferRequest(model_name=engine)
    request.inputs.add(name=tensor, datatype="FP32", shape=values.shape)
    request.raw_input_contents.append(values.tobytes())
    return request.SerializeToString()


def _from_catalogue(engine: str, models: Path) -> None:
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    folder = models / "first_element"
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
