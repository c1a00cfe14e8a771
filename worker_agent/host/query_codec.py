"""Decoding of a query's request into model inputs, and encoding of its response."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from synergai.domain import Outcome
from synergai.errors import InvalidInput, ResponseTooLarge
from synergai.models.warmup import ADVICE
from synergai.oip.inference_pb2 import InferParameter, ModelInferResponse
from synergai.versions import versioned_variant
from synergai.wire.request_codec import RequestDecoder
from synergai.wire.validation import CORRECT, EXIT, LABEL, SAMPLE, check_header
from worker_agent.host.early_exit import EarlyExit
from worker_agent.host.tensor_codec import TIMINGS, read_inputs, write_response, write_timings
from worker_agent.ipc.arena import INLINE_BYTES, SLOT_BYTES
from worker_agent.ipc.frames import MAX_RESPONSE_BYTES, ArenaRef, RunEnded, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Engine
    from synergai.models.samples import Samples
    from synergai.oip.inference_pb2 import ModelInferRequest
    from worker_agent.backends import Array
    from worker_agent.host.processing import Processing
    from worker_agent.ipc.arena import Arena
    from worker_agent.ipc.frames import RunQuery


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
        outputs = self._outputs(header.message)
        inputs = read_inputs(header)
        begin = time.perf_counter()
        inputs = self._processing.preprocess(inputs)
        return DecodedQuery(query, header.message, inputs, outputs, time.perf_counter() - begin)

    def _sample(self, query: RunQuery, message: ModelInferRequest) -> DecodedQuery:
        samples = self._samples.inputs
        if not samples:
            raise InvalidInput(f"the engine is unverified and has no samples; {ADVICE}")
        inputs = samples[message.parameters[SAMPLE].int64_param % len(samples)]
        return DecodedQuery(query, message, inputs, self._outputs(message), 0.0)

    def _outputs(self, message: ModelInferRequest) -> Sequence[str]:
        """Return the names of the model outputs that a request needs."""
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
        raise ResponseTooLarge(
            f"the response has {size:,} bytes or more; the limit is {MAX_RESPONSE_BYTES:,}"
        )
