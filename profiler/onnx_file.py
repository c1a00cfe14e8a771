"""Reader of ONNX files, with the package ``onnx``; engine hosts leave the checks to the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from synergai.domain import UNKNOWN_RANK, TensorSpec
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import ModelContents, weight_files

if TYPE_CHECKING:
    from pathlib import Path

DATATYPES: Final[dict[int, str]] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.STRING: "BYTES",
}


def read_onnx(path: Path) -> ModelContents:
    """Read and check an ONNX file."""
    try:
        model = onnx.load_model(path, load_external_data=False)
    except DecodeError as error:
        raise InvalidInput(
            f"{path.name} is corrupt or not an ONNX file: it cannot be decoded"
        ) from error
    external = bool(weight_files(path))
    inputs, outputs = read_ends(model.graph)
    if not external:
        _check(path, model)
    opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
    return ModelContents(
        format=f"ONNX, opset {opset}, IR version {model.ir_version}",
        inputs=inputs,
        outputs=outputs,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        external_data=external,
        notes=tuple(
            f"output {output.name!r} is not a tensor and is not served"
            for output in model.graph.output
            if not output.type.HasField("tensor_type")
        ),
    )


def read_ends(graph: onnx.GraphProto) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and outputs of a graph."""
    # Old IR versions list weights as inputs.
    weights = {tensor.name for tensor in graph.initializer}
    inputs = tuple(tensor_spec(value) for value in graph.input if value.name not in weights)
    return inputs, tuple(map(tensor_spec, graph.output))


def _check(path: Path, model: onnx.ModelProto) -> None:
    """Check a model, whose tensors of unknown rank become scalars for that."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"{path.name} is corrupt or not an ONNX file: {reason}") from error


def tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return the description of a value; its datatype is ``unknown`` if it is not served."""
    tensor = value.type.tensor_type
    shape = tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else -1
        for size in tensor.shape.dim
    )
    if value.type.HasField("tensor_type") and not tensor.HasField("shape"):
        shape = UNKNOWN_RANK
    return TensorSpec(value.name, DATATYPES.get(tensor.elem_type, "unknown"), shape)
