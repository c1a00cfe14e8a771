"""Cutting in a child process with limits: a graph is not trusted, and ``onnx`` is native code."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace

from profiler.cutting.cuts import Cut
from profiler.cutting.graph import Graph
from profiler.cutting.heads import StageHead
from synergai.domain import TensorSpec  # noqa: TC001 - msgspec reads the annotations
from synergai.errors import InvalidInput, NotFound
from synergai.models.formats.model_files import list_files, size_bytes
from synergai.models.formats.onnx_file import DATATYPES
from synergai.runtime.processes import die_with_parent, limit_data
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Sequence

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


_TIMEOUT_S: Final = 120.0
_BYTES: Final = 1 << 30
_BYTES_PER_MODEL_BYTE: Final = 8
"""Memory of the process: the model is parsed, inferred and copied."""


class StageFile(Struct, frozen=True):
    """A stage to write.

    Attributes:
        first: number of the cut at which it begins; 0 for the inputs of the model.
        last: that at which it ends; 0 for the outputs of the model.
        head: of the early exit at its end, if it has one.
        features: cuts whose pooled tensors are outputs as well, to train heads on.
    """

    first: int
    last: int
    path: str
    head: StageHead | None = None
    features: tuple[int, ...] = ()


class _Order(Struct, frozen=True):
    model: str
    parent: int
    data_bytes: int
    in_one_file: bool
    digest: str = ""
    stages: tuple[StageFile, ...] = ()
    halved: tuple[int, ...] = ()


class ModelCuts(Struct, frozen=True):
    """What a model file says about its cuts.

    Attributes:
        cuts: in the order of the data flow.
        refusal: why it cannot be cut; empty if it can.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    cuts: tuple[Cut, ...] = ()
    refusal: str = ""


def read_cuts(model: Path) -> ModelCuts:
    """Return the cuts, inputs and outputs of the ONNX model in a file, even if it has no cuts.

    Raises:
        InvalidInput: the file cannot be read.
    """
    return _run(model)


def find_cuts(model: Path) -> ModelCuts:
    """Return all cuts of the model in a file.

    Raises:
        InvalidInput: the model cannot be cut, and why.
    """
    return _checked(model, read_cuts(model))


def write_stages(
    model: Path, digest: str, stages: Sequence[StageFile], halved: Sequence[int] = ()
) -> None:
    """Write stages of the model in a file, each checked.

    Args:
        digest: SHA-256 of the model.
        halved: numbers of the cuts whose tensors are 16-bit floats between the stages.
    """
    _checked(model, _run(model, digest, tuple(stages), tuple(halved)))


def feature_name(cut: int) -> str:
    """Return the name of the output with the pooled tensor of a cut."""
    return f"synergai/features/{cut}"


def _checked(model: Path, found: ModelCuts) -> ModelCuts:
    if found.refusal:
        raise InvalidInput(f"{model.name} cannot be cut: {found.refusal}")
    return found


def _run(
    model: Path,
    digest: str = "",
    stages: tuple[StageFile, ...] = (),
    halved: tuple[int, ...] = (),
) -> ModelCuts:
    if model.suffix != ".onnx":
        raise InvalidInput(f"{model.name} cannot be cut: only ONNX models can")
    in_one_file = len(list_files(model)) == 1
    if find_spec("onnx") is None:
        raise NotFound(f"cutting needs the package 'onnx'; {pip_install('engines')}")
    limit = _BYTES + _BYTES_PER_MODEL_BYTE * size_bytes(model)
    order = _Order(str(model), os.getpid(), limit, in_one_file, digest, stages, halved)
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=msgspec.json.encode(order),
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(f"{model.name} cannot be cut within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise InvalidInput(
            f"{model.name} cannot be cut: the process that reads it ended with exit code "
            f"{done.returncode}"
        )
    return msgspec.json.decode(done.stdout, type=ModelCuts)


def _cut(order: _Order) -> ModelCuts:
    import onnx
    from google.protobuf.message import DecodeError

    from profiler.cutting import extraction, graph
    from synergai.models.formats.onnx_file import read_ends

    found = ModelCuts()
    try:
        model = onnx.load_model(order.model, load_external_data=False)
        found = ModelCuts(*read_ends(model.graph))
        if not order.in_one_file:
            return replace(found, refusal="it has weights in other files; save it as one file")
        cuts = graph.find_cuts(model)
        at = {cut.position: cut for cut in cuts}
        halved = extraction.halve_tensors(model, [at[number] for number in order.halved])
        at |= {cut.position: cut for cut in halved}
        for stage in order.stages:
            first, last = at.get(stage.first), at.get(stage.last)
            part = extraction.extract_stage(model, order.digest, first, last)
            for number in stage.features:
                extraction.add_features(part, at[number], feature_name(number))
            if last is not None and stage.head is not None:
                extraction.add_head(part, last, stage.head)
            Path(stage.path).write_bytes(part.SerializeToString(deterministic=True))
    except InvalidInput as error:
        return replace(found, refusal=str(error))
    except DecodeError:
        return ModelCuts(refusal="it is corrupt or not an ONNX file")
    except MemoryError:
        refusal = f"it needs more than {order.data_bytes >> 20:,} MiB of memory"
        return replace(found, refusal=refusal)
    return replace(found, cuts=cuts)


def main() -> int:
    """Read an order from standard input, and write the answer to standard output."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=_Order)
    die_with_parent(order.parent)
    limit_data(order.data_bytes)
    sys.stdout.buffer.write(msgspec.json.encode(_cut(order)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
