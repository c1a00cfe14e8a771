"""Validation of requests against their engine, without NumPy and without copying tensors.

Gateway and agent share it and so report identical errors. Tensor data is either an entry of
``raw_input_contents`` (little endian, row major; used by all common clients) or a typed field of
the tensor's ``contents``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from synergai.domain import UNKNOWN_RANK, Engine, TensorSpec
from synergai.errors import InvalidInput
from synergai.names import split_variant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from synergai.oip.inference_pb2 import ModelInferRequest
    from synergai.wire.request_codec import RequestHeader

ELEMENT_BYTES: Final = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes per element by datatype, except ``BYTES``, whose elements vary in length."""

MAX_BYTES_ELEMENTS: Final = 1 << 18
"""Limit on the elements of a BYTES tensor; checking each of them blocks the event loop."""

_MOST_DIMENSIONS: Final = 65
"""Dimensions of an input that are looked at, one more than an array can have: a request of 2 MB has
room for two million."""
_MAX_EMPTY: Final = 1 << 24
"""Limit on the product of the other dimensions of an empty tensor. No data bound them, and a model
may return a tensor of them, such as the sum of no rows."""

_DERIVED: Final = frozenset(("classes", "boxes"))
"""Outputs that only engines with `postprocess` have."""

MAX_IMAGES: Final = 64
"""Limit on the encoded images of a request; a kilobyte may decode to a megabyte of tensor."""

DATATYPES: Final = frozenset({*ELEMENT_BYTES, "BYTES"})
"""All datatypes of the Open Inference Protocol."""

TYPED_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Field of ``InferTensorContents`` by datatype; 16-bit floats have none."""

UNUSABLE: Final = "synergai_unusable"
"""Request parameter: why an input of a job could not be read. It takes the place of the input, so
that positions remain and the reason appears with the results."""

SAMPLE: Final = "synergai_sample"
"""Request parameter of a gateway: the number of a query, which takes its inputs from the sample set
of the worker. The request has no inputs of its own."""

LABEL: Final = "synergai_label"
"""Parameter of the response to that, and of the requests of later stages: the right class of the
sample, if it is known."""
CORRECT: Final = "synergai_correct"
"""Parameter of the response that answers the sample: whether it has the right class."""

EXIT: Final = "synergai_exit"
"""Response parameter: the tensor behind which the query left its engine at an early exit. Request
parameter of a gateway: `STAY`, `LEAVE` or `DROP`."""
STAY: Final = "stay"
"""The query must not leave the engine here."""
LEAVE: Final = "leave"
"""The query leaves the engine here, however probable its class is."""
DROP: Final = "drop"
"""The tensor for the next stage is not needed: if the query stays, its inputs are used again."""

_NARROW: Final = {
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
}
"""Ranges of the datatypes that are sent in a wider typed field."""


def check_header(header: RequestHeader, engine: Engine) -> None:
    """Validate a decoded request like `check_request`, reusing its template's earlier validation.

    Only BYTES elements, which carry their own lengths, are checked again in every request.
    """
    template = header.template
    if template is not None and template.validated_for is engine:
        return
    check_request(header.message, engine, header.raw)
    if template is not None and all(each.datatype != "BYTES" for each in header.message.inputs):
        template.validated_for = engine


def check_request(
    request: ModelInferRequest, engine: Engine, raw: Sequence[bytes | memoryview] | None = None
) -> None:
    """Check that `engine` can run `request`.

    The model name is not checked: the caller looked the engine up by it.

    Raises:
        InvalidInput: the version differs; an input is unknown, missing or duplicated, or its
            datatype, shape or data is wrong; or a requested output does not exist or cannot be
            returned in the requested form.
    """
    if request.parameters and UNUSABLE in request.parameters:
        raise InvalidInput(request.parameters[UNUSABLE].string_param)
    wanted = request.model_version
    if wanted and wanted != engine.version and split_variant(wanted)[0] != engine.version:
        raise InvalidInput(f"engine {engine.name!r} has version {engine.version!r}, not {wanted!r}")
    specs = {spec.name: spec for spec in engine.inputs}
    tensors = request.inputs
    raw = request.raw_input_contents if raw is None else raw
    if raw and len(raw) != len(tensors):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries for {len(tensors)} inputs; "
            "give one for each input, in the same order"
        )
    for index, tensor in enumerate(tensors):
        spec = specs.pop(tensor.name, None)
        if spec is None:
            raise _unknown_input(tensor.name, engine)
        count = _check_shape(tensor, spec, engine)
        if raw:
            if tensor.HasField("contents"):
                raise InvalidInput(
                    f"input {tensor.name!r} has typed contents as well as raw_input_contents; "
                    "use one of them for the whole request"
                )
            _check_raw(tensor.name, raw[index], tensor.datatype, count)
        else:
            _check_typed(tensor, count)
    if specs:
        missing = ", ".join(repr(name) for name in specs)
        raise InvalidInput(f"the request lacks input {missing} of engine {engine.name!r}")
    if request.outputs:
        _check_outputs(request, engine)


def _unknown_input(name: str, engine: Engine) -> InvalidInput:
    known = ", ".join(repr(spec.name) for spec in engine.inputs)
    if any(spec.name == name for spec in engine.inputs):
        return InvalidInput(f"input {name!r} is given twice")
    return InvalidInput(f"engine {engine.name!r} has no input {name!r}; it has {known}")


def classification_count(output: ModelInferRequest.InferRequestedOutputTensor) -> int:
    """Return the ``classification`` parameter of a requested output; 0 if it is absent.

    With the protocol's classification extension, a client requests the top classes of an output
    instead of the tensor.
    """
    if "classification" not in output.parameters:
        return 0
    parameter = output.parameters["classification"]
    count = parameter.int64_param or parameter.uint64_param
    if count < 1:
        raise InvalidInput(
            f"output {output.name!r}: the parameter 'classification' must be a positive integer"
        )
    return count


def _check_shape(
    tensor: ModelInferRequest.InferInputTensor, spec: TensorSpec, engine: Engine
) -> int:
    """Check datatype and shape of `tensor` against `spec`; return its number of elements."""
    if tensor.datatype != spec.datatype:
        if tensor.datatype == "BYTES" and engine.preprocess and spec is engine.inputs[0]:
            return _check_images(tensor, spec)
        raise InvalidInput(
            f"input {tensor.name!r} must be {spec.datatype}, not {tensor.datatype or 'untyped'}"
        )
    shape = tuple(tensor.shape[:_MOST_DIMENSIONS])
    if not shape_matches(shape, spec.shape):
        raise InvalidInput(
            f"input {tensor.name!r} must have shape {_format_shape(spec.shape)}, "
            f"not {_format_shape(shape)}{_shape_hint(shape, spec.shape)}"
        )
    count = math.prod(shape)
    if not count and math.prod(filter(None, shape)) > _MAX_EMPTY:
        raise InvalidInput(f"input {tensor.name!r} is empty, and its other dimensions too large")
    return count


def _shape_hint(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """Return what to change about a shape that does not match, where that is not obvious."""
    if wanted[:1] in {(-1,), (1,)} and shape_matches((1, *shape), wanted):
        return f": add the batch dimension, shape {_format_shape((1, *shape))}"
    return ""


def _check_images(tensor: ModelInferRequest.InferInputTensor, spec: TensorSpec) -> int:
    """Check the number of encoded images in `tensor` against `spec`, and return it."""
    shape = tuple(tensor.shape[:_MOST_DIMENSIONS])
    fits = len(shape) == 1 and shape_matches(shape, spec.shape[:1])
    if not (fits and 1 <= shape[0] <= MAX_IMAGES):
        raise InvalidInput(
            f"input {tensor.name!r} accepts encoded images as BYTES of shape "
            f"{_format_shape(spec.shape[:1])}, from 1 to {MAX_IMAGES} of them, "
            f"not {_format_shape(shape)}"
        )
    return shape[0]


def shape_matches(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether a tensor of shape `shape` suits an input; -1 in `wanted` is any size or 0."""
    if wanted == UNKNOWN_RANK:
        return len(shape) < _MOST_DIMENSIONS and min(shape, default=0) >= 0
    if len(shape) != len(wanted):
        return False
    if shape == wanted:
        return -1 not in shape
    for have, want in zip(shape, wanted, strict=True):
        if have != want if want != -1 else have < 0:
            return False
    return True


def _format_shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape[:16]))}{', ...' if len(shape) > 16 else ''}]"


def _check_raw(name: str, data: bytes | memoryview, datatype: str, count: int) -> None:
    size = ELEMENT_BYTES.get(datatype)
    if size is None:
        _check_bytes_elements(name, data, count)
    elif len(data) != count * size:
        raise InvalidInput(
            f"input {name!r} needs {count * size:,} bytes for its shape ({count:,} elements of "
            f"{datatype}), not {len(data):,}"
        )


def _check_bytes_elements(name: str, data: bytes | memoryview, count: int) -> None:
    """Check that `data` is `count` elements, each a 32-bit little endian length and its bytes."""
    if count > MAX_BYTES_ELEMENTS:
        raise InvalidInput(
            f"input {name!r} has {count:,} BYTES elements; the limit is {MAX_BYTES_ELEMENTS:,}"
        )
    found = position = 0
    while position < len(data) and found <= count:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        found += 1
    if found != count or position != len(data):
        raise InvalidInput(
            f"input {name!r}: its data is not {count:,} BYTES elements, each a 32-bit little "
            "endian length followed by as many bytes"
        )


def _check_typed(tensor: ModelInferRequest.InferInputTensor, count: int) -> None:
    field = TYPED_FIELDS.get(tensor.datatype)
    if field is None:
        raise InvalidInput(
            f"input {tensor.name!r}: {tensor.datatype} has no typed contents; "
            "send raw_input_contents"
        )
    for other, _ in tensor.contents.ListFields():
        if other.name != field:
            raise InvalidInput(
                f"input {tensor.name!r} is {tensor.datatype}, whose data belongs in {field}, "
                f"not in {other.name}"
            )
    values = getattr(tensor.contents, field)
    if len(values) != count:
        raise InvalidInput(
            f"input {tensor.name!r} needs {count:,} elements for its shape, not {len(values):,}"
        )
    if tensor.datatype in _NARROW and count:
        low, high = _NARROW[tensor.datatype]
        if min(values) < low or max(values) > high:
            raise InvalidInput(
                f"input {tensor.name!r}: an element is out of range for {tensor.datatype}, "
                f"{low} to {high}"
            )


def check_output_names(names: Iterable[str], engine: Engine) -> None:
    known = set(_output_names(engine))
    requested: set[str] = set()
    for name in names:
        if name not in known:
            found = ", ".join(map(repr, _output_names(engine)))
            derivable = name in _DERIVED and not engine.postprocess
            hint = f"; set postprocess = {name!r} in its engine.toml" if derivable else ""
            raise InvalidInput(
                f"engine {engine.name!r} has no output {name!r}; it has {found}{hint}"
            )
        if name in requested:
            raise InvalidInput(f"output {name!r} of engine {engine.name!r} is requested twice")
        requested.add(name)


def _check_outputs(request: ModelInferRequest, engine: Engine) -> None:
    check_output_names((output.name for output in request.outputs), engine)
    for output in request.outputs:
        if output.parameters and classification_count(output) and output.name == engine.postprocess:
            raise InvalidInput(
                f"output {output.name!r} is derived by post-processing and cannot be classified"
            )


def _output_names(engine: Engine) -> Iterator[str]:
    yield from (spec.name for spec in engine.outputs)
    if engine.postprocess:
        yield engine.postprocess
