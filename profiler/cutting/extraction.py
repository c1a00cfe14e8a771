"""Stages of an ONNX model: the operators between two cuts, as a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import onnx

from profiler.cutting.graph import Graph
from profiler.onnx_file import DATATYPES
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from profiler.cutting.cuts import Cut
    from profiler.cutting.heads import StageHead


_PRODUCER: Final = "synergai"
_INPUTS_WITHOUT_WEIGHTS: Final = 4
"""The first version of the format in which weights need not be inputs."""

_ELEMENT_TYPES: Final = {datatype: number for number, datatype in DATATYPES.items()}


def extract_stage(
    model: onnx.ModelProto, digest: str, first: Cut | None, last: Cut | None
) -> onnx.ModelProto:
    """Return the part of a model between two cuts, checked.

    The file names the whole model, so that the digest of a stage follows from the model's digest
    and the tensors.

    Args:
        digest: SHA-256 of the model.
        first: where it begins; None for the inputs of the model.
        last: where it ends; None for the outputs of the model.
    """
    graph = Graph(model)
    source = model.graph
    outputs = [last.tensor] if last else graph.outputs
    nodes = graph.needed(outputs, given=first.tensor if first else "")
    read = {*outputs, *(name for number in nodes for name in graph.reads[number])}
    inputs = {first.tensor} if first else set(graph.inputs)
    if first and (outer := read & set(graph.inputs)):
        raise InvalidInput(f"the part behind {first.tensor!r} needs the input {min(outer)!r}")
    stage = onnx.ModelProto(ir_version=model.ir_version, producer_name=_PRODUCER)
    stage.opset_import.extend(model.opset_import)
    stage.functions.extend(model.functions)
    part = stage.graph
    part.name = f"{source.name or 'graph'} from {first.tensor if first else 'its inputs'}"
    part.node.extend(source.node[number] for number in nodes)
    part.initializer.extend(each for each in source.initializer if each.name in read)
    part.sparse_initializer.extend(
        each for each in source.sparse_initializer if each.values.name in read
    )
    if first:
        part.input.append(_value(first))
    listed = model.ir_version < _INPUTS_WITHOUT_WEIGHTS
    weights = {each.name for each in part.initializer}
    for value in source.input:
        if value.name in inputs or (listed and value.name in weights):
            part.input.append(value)
    part.output.extend([_value(last)] if last else source.output)
    onnx.helper.set_model_props(
        stage,
        {
            "synergai.model": digest,
            "synergai.first": first.tensor if first else "",
            "synergai.last": last.tensor if last else "",
        },
    )
    try:
        onnx.checker.check_model(stage)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"the stage {part.name} is not a valid model: {reason}") from error
    return stage


def _value(cut: Cut) -> onnx.ValueInfoProto:
    shape = [None if size == -1 else size for size in cut.shape]
    return onnx.helper.make_tensor_value_info(cut.tensor, _ELEMENT_TYPES[cut.datatype], shape)


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
