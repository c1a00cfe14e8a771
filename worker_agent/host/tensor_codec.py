"""Conversion of request bytes to arrays and of arrays to response bytes, copying at most once.

Inputs are views of the request's bytes wherever alignment permits. A response is a list of parts,
with tensors as views of the outputs, whose concatenation is the serialised message: protobuf allows
serialised fields to be concatenated.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import InferParameter, ModelInferResponse
from synergai.wire.arrays import DTYPES
from synergai.wire.request_codec import MAX_TEMPLATES, SMALL_MESSAGE_BYTES, raw_output_prefix
from synergai.wire.validation import TYPED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.oip.inference_pb2 import ModelInferRequest
    from synergai.wire.request_codec import Buffer, RequestHeader, RequestTemplate
    from worker_agent.backends import Array

    Description: TypeAlias = tuple[str, str, tuple[int, ...]]
    Described: TypeAlias = Iterable[tuple[str, str, Array]]

TIMINGS: Final = "synergai_timings"
"""Request parameter: if true, the response includes the durations of its phases."""
_DATATYPES: Final = {
    dtype: name for name, dtype in DTYPES.items() if name != "BF16" and not dtype.hasobject
}
BINARY_PARAMETER: Final = "binary_data_output"
"""Request parameter; false requests typed contents. The name is that of KServe and Triton."""


def read_inputs(header: RequestHeader) -> dict[str, Array]:
    """Return the inputs by name of a request that has passed ``check_request``."""
    try:
        if not header.raw:
            return {tensor.name: _from_typed(tensor) for tensor in header.message.inputs}
        template = header.template
        described = _inputs(header.message) if template is None else _template_inputs(template)
        return {
            name: _from_raw(datatype, shape, raw)
            for (name, datatype, shape), raw in zip(described, header.raw, strict=True)
        }
    except (ValueError, KeyError, struct.error) as error:
        raise InvalidInput("an input's data do not fit its datatype and shape") from error


def write_response(
    request: ModelInferRequest, version: str, outputs: Mapping[str, Array], *, raw: bool = False
) -> list[Buffer]:
    """Return the parts of the serialised ``ModelInferResponse`` to `request`, in order.

    With `raw`, contents are raw even if the request asks for typed ones.
    """
    described = [(name, *_to_wire(array)) for name, array in outputs.items()]
    if not raw and request.parameters and wants_typed(request):
        return [typed_response(request, version, described)]
    tensors = tuple([(name, datatype, wire.shape) for name, datatype, wire in described])
    parts: list[Buffer] = [_header(request.model_name, version, tensors)]
    if request.id:
        parts.append(ModelInferResponse(id=request.id).SerializeToString())
    for _, _, wire in described:
        content = _to_raw(wire)
        parts += (raw_output_prefix(len(content)), content)
    return parts


def write_timings(preprocess_s: float, compute_s: float, postprocess_s: float) -> Buffer:
    """Return an additional response part with the durations of the phases as parameters.

    Post-processing includes the serialisation of the other parts.
    """
    timings = {
        "synergai_preprocess_us": preprocess_s,
        "synergai_compute_us": compute_s,
        "synergai_postprocess_us": postprocess_s,
    }
    parameters = {
        name: InferParameter(int64_param=round(seconds * 1e6)) for name, seconds in timings.items()
    }
    return ModelInferResponse(parameters=parameters).SerializeToString()


@lru_cache(maxsize=64)
def _header(
    model: str, version: str, tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
) -> bytes:
    """Return the serialised response without id and data, which most queries have in common."""
    outputs = [
        ModelInferResponse.InferOutputTensor(name=name, datatype=datatype, shape=shape)
        for name, datatype, shape in tensors
    ]
    response = ModelInferResponse(model_name=model, model_version=version, outputs=outputs)
    return response.SerializeToString()


def _inputs(message: ModelInferRequest) -> list[Description]:
    return [(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in message.inputs]


@lru_cache(maxsize=MAX_TEMPLATES)
def _template_inputs(template: RequestTemplate) -> list[Description]:
    return _inputs(template.message)


def _from_raw(datatype: str, shape: tuple[int, ...], raw: Buffer) -> Array:
    if datatype == "BYTES":
        return _objects(_split_elements(raw), shape)
    array = np.frombuffer(raw, DTYPES[datatype]).reshape(shape)
    # Runtimes read whole elements, which some processors cannot do at unaligned addresses.
    return array if array.flags.aligned else array.copy()


def _from_typed(tensor: ModelInferRequest.InferInputTensor) -> Array:
    values = getattr(tensor.contents, TYPED_FIELDS[tensor.datatype])
    if tensor.datatype == "BYTES":
        return _objects(list(values), tensor.shape)
    return np.array(values, DTYPES[tensor.datatype]).reshape(tuple(tensor.shape))


def _objects(elements: Sequence[bytes], shape: Sequence[int]) -> Array:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(tuple(shape))


def _split_elements(raw: Buffer) -> list[bytes]:
    elements, position = [], 0
    while position < len(raw):
        (size,) = struct.unpack_from("<I", raw, position)
        position += 4
        elements.append(bytes(raw[position : position + size]))
        position += size
    return elements


def _to_wire(array: Array) -> tuple[str, Array]:
    """Return the datatype of `array`, and the array in wire layout: contiguous, little endian."""
    dtype = array.dtype
    if dtype.hasobject:
        return "BYTES", array
    if dtype not in _DATATYPES or not array.flags.c_contiguous:
        array = np.asarray(array, dtype=dtype.newbyteorder("<"), order="C")
        dtype = array.dtype
    # Only bfloat16, stored as unsigned bit patterns, has dtype metadata.
    return _DATATYPES[dtype] if dtype.metadata is None else "BF16", array


def _to_raw(array: Array) -> Buffer:
    if array.dtype.hasobject:
        return b"".join(struct.pack("<I", len(element)) + element for element in array.flat)
    if array.nbytes <= SMALL_MESSAGE_BYTES:
        return array.tobytes()
    return array.reshape(-1).data.cast("B")


def wants_typed(request: ModelInferRequest) -> bool:
    """Return whether the request asks for typed contents."""
    if BINARY_PARAMETER not in request.parameters:
        return False
    parameter = request.parameters[BINARY_PARAMETER]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidInput(f"the parameter {BINARY_PARAMETER!r} must be true or false")
    return not parameter.bool_param


def typed_response(request: ModelInferRequest, version: str, outputs: Described) -> bytes:
    """Return the serialised ``ModelInferResponse`` to `request`, with typed contents."""
    response = ModelInferResponse(
        model_name=request.model_name, model_version=version, id=request.id
    )
    for name, datatype, array in outputs:
        field = TYPED_FIELDS.get(datatype)
        if field is None:
            raise InvalidInput(
                f"output {name!r} is {datatype}, which has no typed contents; "
                f"omit the parameter {BINARY_PARAMETER!r}"
            )
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, field).extend(array.reshape(-1).tolist())
    return response.SerializeToString()
