"""What stages compute at their ends: 16-bit tensors, pooled features, and heads of early exits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from msgspec.structs import replace

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.models.cutting.cuts import Cut
    from synergai.models.cutting.heads import StageHead


def halve_tensors(model: onnx.ModelProto, cuts: Sequence[Cut]) -> list[Cut]:
    """Let a model compute the tensors of some cuts as 16-bit floats in between.

    Return the cuts at these tensors. What reads the tensor of a cut gets 32-bit floats again.
    """
    halved = []
    for cut in cuts:
        if cut.datatype != "FP32":
            raise InvalidInput(f"{cut.tensor!r} is {cut.datatype}; only 32-bit floats are halved")
        full, half = f"{cut.tensor}/full", f"{cut.tensor}/half"
        nodes = model.graph.node
        place = next(number for number, node in enumerate(nodes) if cut.tensor in node.output)
        maker = nodes[place]
        maker.output[list(maker.output).index(cut.tensor)] = full
        casts = (full, half, onnx.TensorProto.FLOAT16), (half, cut.tensor, onnx.TensorProto.FLOAT)
        for source, target, to in reversed(casts):
            nodes.insert(place + 1, onnx.helper.make_node("Cast", [source], [target], to=to))
        size = cut.size_bytes // 2
        halved.append(replace(cut, tensor=half, datatype="FP16", size_bytes=size))
    return halved


def add_features(model: onnx.ModelProto, cut: Cut, name: str) -> None:
    """Make the pooled tensor of a cut an output of a model that computes it: [rows, features].

    Images are averaged over each quadrant, as where something is seen matters in early layers; or
    over all of it, if it has a dynamic size.
    """
    graph, pooled, sides = model.graph, cut.tensor, cut.shape[2:]
    if sides:
        pooled = f"{name}/pooled"
        ends = [cut.tensor], [pooled]
        if min(sides) > 1:
            kernel, strides = [(side + 1) // 2 for side in sides], [side // 2 for side in sides]
            node = onnx.helper.make_node("AveragePool", *ends, kernel_shape=kernel, strides=strides)
        else:
            node = onnx.helper.make_node("GlobalAveragePool", *ends)
        graph.node.append(node)
    graph.node.append(onnx.helper.make_node("Flatten", [pooled], [name], axis=1))
    shape = [_rows(cut), None]
    graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))


def add_head(model: onnx.ModelProto, cut: Cut, head: StageHead) -> None:
    """Add the head of an early exit to the stage that ends at a cut, as its first output."""
    name = "synergai/exit"
    add_features(model, cut, f"{name}/features")
    graph = model.graph
    del graph.output[-1]
    bias = np.frombuffer(head.bias, "<f4")
    weights = np.frombuffer(head.weights, "<f4").reshape(-1, len(bias))
    for part, array in (("weights", weights), ("bias", bias)):
        graph.initializer.append(onnx.numpy_helper.from_array(array, f"{name}/{part}"))
    parts = [f"{name}/{part}" for part in ("features", "weights", "bias")]
    graph.node.append(onnx.helper.make_node("Gemm", parts, [f"{name}/scores"]))
    output = head.exit.output
    graph.node.append(onnx.helper.make_node("Softmax", [f"{name}/scores"], [output], axis=1))
    tensor = graph.output.pop()
    shape = [_rows(cut), len(bias)]
    graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape))
    graph.output.append(tensor)


def _rows(cut: Cut) -> int | None:
    return None if cut.shape[0] == -1 else cut.shape[0]
