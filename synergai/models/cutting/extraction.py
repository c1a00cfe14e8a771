"""Stages of an ONNX model: the operators between two cuts, as a model of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import onnx

from synergai.errors import InvalidInput
from synergai.models.cutting.graph import Graph
from synergai.models.formats.onnx_file import DATATYPES

if TYPE_CHECKING:
    from synergai.models.cutting.cuts import Cut

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
