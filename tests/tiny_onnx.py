"""Writer of tiny ONNX files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

Constants = Mapping[str, ArrayLike] | Sequence[TensorProto]


def floats(shape: Sequence[int | str | None] | None, *names: str) -> list[onnx.ValueInfoProto]:
    """Return tensors of 32-bit floats, which have the same shape."""
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]


def new_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Constants = (),
    *,
    opset: int = 13,
    domain: str = "",
) -> onnx.ModelProto:
    """Return a model.

    Args:
        nodes: its nodes.
        inputs: its inputs.
        outputs: its outputs.
        constants: what nodes read besides, by name if they are arrays.
        opset: version of the operators.
        domain: another set of operators that it uses.
    """
    if isinstance(constants, Mapping):
        constants = [
            numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
        ]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def save_model(path: Path, model: onnx.ModelProto) -> Path:
    """Write a model, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
