"""Decoding of a query's request into model inputs, and encoding of its response."""

from __future__ import annotations

import struct
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec import Struct

from synergai.domain import Engine, Outcome
from synergai.errors import InvalidInput, MessageTooLarge
from synergai.models.definition import ADVICE
from synergai.names import versioned_variant
from synergai.oip.inference_pb2 import InferParameter, ModelInferResponse
from synergai.wire.arrays import DTYPES, read_tensors
from synergai.wire.request_codec import SMALL_MESSAGE_BYTES, RequestDecoder, raw_output_prefix
from synergai.wire.validation import CORRECT, EXIT, LABEL, SAMPLE, TYPED_FIELDS, check_header
from worker_agent.host.processing import EarlyExit, Processing
from worker_agent.ipc import (
    INLINE_BYTES,
    MAX_RESPONSE_BYTES,
    SLOT_BYTES,
    Arena,
    ArenaRef,
    RunEnded,
    RunQuery,
    Tally,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.models.samples import Samples
    from synergai.oip.inference_pb2 import ModelInferRequest
    from synergai.wire.request_codec import Buffer
    from worker_agent.backends import Array

    Described: TypeAlias = Iterable[tuple[str, str, Array]]


class DecodedQuery(Struct, frozen=True):
    """A query ready to be computed; its message has no tensors."""

    query: RunQuery
    message: ModelInferRequest
    inputs: dict[str, Array]
    outputs: Sequence[str]
    preprocess_s: float

    @property
    def rows(self) -> int:
        """Size of the inputs' first axis."""
        return len(next(iter(self.inputs.values())))


class QueryCodec:
    """Decodes requests to one engine and encodes the responses."""

    def __init__(
        self,
        arena: Arena,
        engine: Engine,
        processing: Processing,
        samples: Samples,
        variant: str = "",
    ) -> None:
        self._arena = arena
        self._engine = engine
        self._version = versioned_variant(engine.version, variant)
        self._processing = processing
        self._samples = samples
        self._exit = EarlyExit(engine.exit, engine) if engine.exit else None
        self._decoder = RequestDecoder()

    def decode(self, query: RunQuery) -> DecodedQuery:
        """Validate the request and convert it to model inputs."""
        request = query.request
        data = self._arena.view(request) if isinstance(request, ArenaRef) else request
        header = self._decoder.decode(data)
        message = header.message
        if not message.inputs and SAMPLE in message.parameters:
            return self._sample(query, message)
        check_header(header, self._engine)
        outputs = self._outputs(message)
        inputs = read_tensors(message.inputs, header.raw)
        begin = time.perf_counter()
        inputs = self._processing.preprocess(inputs)
        return DecodedQuery(query, message, inputs, outputs, time.perf_counter() - begin)

    def _sample(self, query: RunQuery, message: ModelInferRequest) -> DecodedQuery:
        samples = self._samples.inputs
        if not samples:
            raise InvalidInput(f"the engine is unverified and has no samples; {ADVICE}")
        inputs = samples[message.parameters[SAMPLE].int64_param % len(samples)]
        return DecodedQuery(query, message, inputs, self._outputs(message), 0.0)

    def _outputs(self, message: ModelInferRequest) -> Sequence[str]:
        if self._exit is not None:
            return self._exit.outputs_to_compute(message)
        return self._processing.outputs_to_compute(message)

    def _label(
        self, message: ModelInferRequest, arrays: Sequence[Array], *, answers: bool
    ) -> bytes:
        """Return the part of a response to a sample that concerns its label."""
        response, labels = ModelInferResponse(), self._samples.labels
        if not message.inputs and labels is not None:
            label = int(labels[message.parameters[SAMPLE].int64_param % len(labels)])
            response.parameters[LABEL].int64_param = label
        elif LABEL in message.parameters:
            label = message.parameters[LABEL].int64_param
        else:
            return b""
        if answers:
            response.parameters[CORRECT].bool_param = (
                self._processing.predicted_class(arrays) == label
            )
        return response.SerializeToString()

    def encode(
        self, decoded: DecodedQuery, arrays: Sequence[Array], compute_s: float, batch: int = 1
    ) -> RunEnded:
        """Encode the response to a query from the arrays of ``decoded.outputs``, in this order."""
        encoding = time.perf_counter()
        message, request = decoded.message, decoded.query.request
        outputs = dict(zip(decoded.outputs, arrays, strict=True))
        stays, left_at = False, ""
        if self._exit is not None:
            outputs, left_at = self._exit.choose(message, outputs)
            stays = not left_at
        if not stays:
            outputs = self._processing.requested_outputs(message, outputs)
        _check_size(sum([each.nbytes for each in outputs.values()]))  # before they are copied
        parts = write_response(message, self._version, outputs, raw=stays)
        if left_at:
            left = {EXIT: InferParameter(string_param=left_at)}
            parts.append(ModelInferResponse(parameters=left).SerializeToString())
        if message.parameters:
            parts.append(self._label(message, arrays, answers=not stays))
            if message.parameters[TIMINGS].bool_param:
                postprocess_s = time.perf_counter() - encoding
                parts.append(write_timings(decoded.preprocess_s, compute_s, postprocess_s))
        size = sum(map(len, parts))
        _check_size(size)
        response: bytes | ArenaRef
        if isinstance(request, ArenaRef) and INLINE_BYTES < size <= SLOT_BYTES:
            # The inputs are no longer needed, so the response may overwrite the request.
            response = self._arena.write(request.slot, parts)
        else:
            response = b"".join(parts)
        tally = Tally(1, compute_s=compute_s, batch=batch)
        return RunEnded(decoded.query.run_id, Outcome.COMPLETED, tally, response)


def _check_size(size: int) -> None:
    if size > MAX_RESPONSE_BYTES:
        raise MessageTooLarge(
            f"the response has {size:,} bytes or more; the limit is {MAX_RESPONSE_BYTES:,}"
        )


# Inputs are views of the request's bytes wherever alignment permits. A response is a list of parts,
# with tensors as views of the outputs, whose concatenation is the serialised message: protobuf
# allows serialised fields to be concatenated.

TIMINGS: Final = "synergai_timings"
"""Request parameter: if true, the response includes the durations of its phases."""
_DATATYPES: Final = {
    dtype: name for name, dtype in DTYPES.items() if name != "BF16" and not dtype.hasobject
}
BINARY_PARAMETER: Final = "binary_data_output"
"""Request parameter; false requests typed contents. The name is that of KServe and Triton."""


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
