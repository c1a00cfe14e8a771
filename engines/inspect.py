"""Describes a model file without running it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from engines.model_files import BACKENDS, MAX_MODEL_BYTES, digest
from synergai.domain import TensorSpec
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

_DATATYPES: Final[dict[int, str]] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What a model file says about itself.

    Attributes:
        backend: what runs it.
        opset: version of the default operator set.
        ir_version: version of the file format.
        parameters: how many numbers its weights are.
        size_bytes: of the file.
        digest: sha256 of the file, hexadecimal.
        producer: the program that wrote it; empty if it does not say.
        external_data: weights lie in other files.
    """

    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    ir_version: int
    parameters: int
    size_bytes: int
    digest: str
    producer: str = ""
    external_data: bool = False


def describe(path: Path, called: str = "") -> ModelDescription:
    """Read and check a model file.

    Args:
        path: of the file.
        called: what messages call it, if not by its path.

    Raises:
        InvalidInput: it cannot be read, is damaged, or is of no kind that can be served.
    """
    called = called or str(path)
    if path.suffix not in BACKENDS:
        raise InvalidInput(f"{called} is no model file: {', '.join(BACKENDS)} can be read")
    try:
        size = path.stat().st_size
        if not 0 < size <= MAX_MODEL_BYTES:
            raise InvalidInput(f"{called} has {size:,} bytes; a model has 1 to {MAX_MODEL_BYTES:,}")
        model = onnx.load_model(path, load_external_data=False)
        found = digest(path)
    except OSError as error:
        raise InvalidInput(f"{called} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise InvalidInput(f"{called} is damaged or no ONNX file: it cannot be decoded") from error
    external = any(
        tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer
    )
    if not external:
        _check(called, model)
    weights = {tensor.name for tensor in model.graph.initializer}
    return ModelDescription(
        backend=BACKENDS[path.suffix],
        # Files of old IR versions list their weights among the inputs.
        inputs=tuple(_spec(value) for value in model.graph.input if value.name not in weights),
        outputs=tuple(_spec(value) for value in model.graph.output),
        opset=next((entry.version for entry in model.opset_import if not entry.domain), 0),
        ir_version=model.ir_version,
        parameters=sum(math.prod(tensor.dims) for tensor in model.graph.initializer),
        size_bytes=size,
        digest=found,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        external_data=external,
    )


def _check(called: str, model: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"{called} is damaged or no ONNX file: {reason}") from error


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    shape = tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else -1
        for size in tensor.shape.dim
    )
    # A sequence or map is no tensor, and can be seen here but not be served.
    return TensorSpec(value.name, _DATATYPES.get(tensor.elem_type, "unknown"), shape)
