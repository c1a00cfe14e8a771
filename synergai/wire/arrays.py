"""Conversion between NumPy arrays and tensors of the Open Inference Protocol.

Each datatype maps to one NumPy dtype. NumPy lacks bfloat16, so ``BF16`` tensors become arrays of
bit patterns (`BFLOAT16_BITS`); arrays of the ``ml_dtypes`` package are accepted as well. ``BYTES``
tensors are object arrays of ``bytes``; strings are accepted and sent as UTF-8. Arrays are sent as
raw contents, little endian and row major; typed contents can be read too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from synergai.errors import InvalidInput
from synergai.wire.parameters import set_parameter
from synergai.wire.validation import TYPED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from synergai.oip import inference_pb2
    from synergai.wire.request_codec import Buffer

    Array: TypeAlias = NDArray[Any]
    Tensor: TypeAlias = (
        inference_pb2.ModelInferRequest.InferInputTensor
        | inference_pb2.ModelInferResponse.InferOutputTensor
    )

BFLOAT16_BITS: Final = np.dtype("<u2", metadata={"datatype": "BF16"})
"""Dtype of bfloat16 bit patterns; compares equal to uint16 but is sent as ``BF16``."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": BFLOAT16_BITS,
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}
"""NumPy dtype by datatype."""

_DATATYPES: Final = {
    (dtype.kind, dtype.itemsize): name for name, dtype in DTYPES.items() if name != "BF16"
}


def datatype_of(dtype: np.dtype[Any]) -> str:
    # The dtype of ml_dtypes has kind V; `dtype.name` is too slow to compute for every dtype.
    if (dtype.kind == "V" and dtype.name == "bfloat16") or _marked_bfloat16(dtype):
        return "BF16"
    if dtype.kind in "SU":
        return "BYTES"
    try:
        return _DATATYPES[dtype.kind, dtype.itemsize]
    except KeyError:
        raise InvalidInput(f"the protocol has no datatype for NumPy's {dtype}") from None


def _marked_bfloat16(dtype: np.dtype[Any]) -> bool:
    return dtype.metadata is not None and dtype.metadata.get("datatype") == "BF16"


def to_raw(array: Array) -> bytes:
    """Serialise `array` as raw tensor contents."""
    datatype = datatype_of(array.dtype)
    if datatype == "BYTES":
        return _join_elements(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


def from_raw(data: Buffer, datatype: str, shape: Sequence[int]) -> Array:
    """Return raw tensor contents as an array: a view of `data` wherever alignment permits."""
    dtype = _dtype(datatype)
    count = _count(shape)
    if dtype.hasobject:
        return _split_elements(data, count).reshape(tuple(shape))
    if len(data) != count * dtype.itemsize:
        raise InvalidInput(
            f"{count:,} elements of {datatype} are {count * dtype.itemsize:,} bytes, "
            f"not {len(data):,}"
        )
    array = np.frombuffer(data, dtype).reshape(tuple(shape))
    # Runtimes read whole elements, which some processors cannot do at unaligned addresses.
    return array if array.flags.aligned else array.copy()


def from_contents(
    contents: inference_pb2.InferTensorContents, datatype: str, shape: Sequence[int]
) -> Array:
    field = TYPED_FIELDS.get(datatype)
    if field is None:
        raise InvalidInput(f"{datatype} has no typed contents")
    return from_values(getattr(contents, field), datatype, shape)


def from_values(values: Sequence[Any], datatype: str, shape: Sequence[int]) -> Array:
    dtype = _dtype(datatype)
    count = _count(shape)
    if len(values) != count:
        raise InvalidInput(f"the shape has {count:,} elements, the contents have {len(values):,}")
    if count and dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        # Small integers are sent in a wider field, and JSON knows no bounds.
        if min(values) < bounds.min or max(values) > bounds.max:
            raise InvalidInput(f"an element is out of range for {datatype}")
    return np.fromiter(values, dtype, count).reshape(tuple(shape))


def build_request(
    engine: str,
    inputs: Mapping[str, ArrayLike],
    *,
    outputs: Sequence[str] = (),
    version: str = "",
    parameters: Mapping[str, bool | int | float | str] | None = None,
) -> inference_pb2.ModelInferRequest:
    """Build a request with `inputs` as raw contents; without `outputs`, it requests all."""
    from synergai.oip import inference_pb2

    request = inference_pb2.ModelInferRequest(model_name=engine, model_version=version)
    for name, value in inputs.items():
        array = _as_array(value)
        try:
            data = to_raw(array)
        except InvalidInput as error:
            raise InvalidInput(f"input {name!r}: {error}") from None
        request.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        request.raw_input_contents.append(data)
    for name in outputs:
        request.outputs.add(name=name)
    for name, parameter in (parameters or {}).items():
        set_parameter(request.parameters[name], parameter)
    return request


def read_outputs(response: inference_pb2.ModelInferResponse) -> dict[str, Array]:
    return read_tensors(response.outputs, response.raw_output_contents)


def read_tensors(tensors: Sequence[Tensor], raw: Sequence[Buffer]) -> dict[str, Array]:
    """Return the arrays of a message's tensors by name, from raw or typed contents."""
    if raw and len(raw) != len(tensors):
        raise InvalidInput(f"there are {len(raw)} raw contents for {len(tensors)} tensors")
    arrays = {}
    for index, tensor in enumerate(tensors):
        try:
            if raw:
                array = from_raw(raw[index], tensor.datatype, tensor.shape)
            else:
                array = from_contents(tensor.contents, tensor.datatype, tensor.shape)
        except (InvalidInput, ValueError) as error:  # such as a shape that no array can have
            raise InvalidInput(f"tensor {tensor.name!r}: {error}") from None
        arrays[tensor.name] = array
    return arrays


def _as_array(value: ArrayLike) -> Array:
    array = np.asarray(value)
    if array.dtype.kind == "S" and not isinstance(value, np.ndarray):
        # NumPy's bytes arrays drop trailing zeros of their elements.
        return np.asarray(value, object)
    return array


def _dtype(datatype: str) -> np.dtype[Any]:
    try:
        return DTYPES[datatype]
    except KeyError:
        raise InvalidInput(f"unknown datatype {datatype!r}") from None


def _count(shape: Sequence[int]) -> int:
    if min(shape, default=0) < 0:
        raise InvalidInput(f"the shape {list(shape)} has a negative dimension")
    return math.prod(shape)


def _join_elements(array: Array) -> bytes:
    """Serialise each element as a 32-bit little endian length and its bytes."""
    parts: list[bytes] = []
    for element in array.flat:
        match element:
            case bytes():
                data = bytes(element)
            case str():
                data = element.encode()
            case _:
                kind = type(element).__name__
                raise InvalidInput(f"an element must be bytes or str, not {kind}")
        parts += (len(data).to_bytes(4, "little"), data)
    return b"".join(parts)


def _split_elements(data: Buffer, count: int) -> Array:
    elements: list[bytes] = []
    position = 0
    while position < len(data) and len(elements) < count:
        start = position + 4
        position = start + int.from_bytes(data[position:start], "little")
        elements.append(bytes(data[start:position]))
    if len(elements) != count or position != len(data):
        raise InvalidInput(f"the data is not {count:,} length-prefixed elements")
    return np.fromiter(elements, object, count)
