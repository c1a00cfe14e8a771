"""A query's request opened, up to what the model takes, and its response written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

from synergai.domain import Outcome
from synergai.protocol.request_codec import RequestDecoder
from synergai.protocol.validation import check_header
from synergai.values import value
from worker_agent.host.tensor_codec import TIMINGS, read_inputs, write_response, write_timings
from worker_agent.ipc.arena import INLINE_BYTES, SLOT_BYTES
from worker_agent.ipc.frames import ArenaRef, RunEnded, Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.domain import Engine
    from synergai.oip.inference_pb2 import ModelInferRequest
    from worker_agent.host.processing import Processing
    from worker_agent.ipc.arena import Arena
    from worker_agent.ipc.frames import RunQuery

    Array: TypeAlias = NDArray[Any]


@value()
class DecodedQuery:
    """A query about to be computed.

    Attributes:
        header: the request without its tensors.
        inputs: as the model takes them; views of the request's bytes where possible.
        names: the outputs to compute.
        prepared_s: seconds that decoding and preparing took.
    """

    query: RunQuery
    header: ModelInferRequest
    inputs: dict[str, Array]
    names: Sequence[str]
    preprocess_s: float

    @property
    def rows(self) -> int:
        """The size of its inputs' first axis."""
        return len(next(iter(self.inputs.values())))


class QueryCodec:
    """Opens requests to one engine and writes the responses.

    Args:
        arena: where large ones lie.
        engine: what requests are checked against.
        processing: what is done to the queries before and after the model.
    """

    def __init__(self, arena: Arena, engine: Engine, processing: Processing) -> None:
        self._arena = arena
        self._engine = engine
        self._processing = processing
        self._decoder = RequestDecoder()

    def open(self, query: RunQuery) -> DecodedQuery:
        """Make the model's inputs of a request.

        Raises:
            InvalidInput: the request is not one that the engine can answer.
        """
        request = query.request
        data = self._arena.view(request) if isinstance(request, ArenaRef) else request
        header = self._decoder.decode(data)
        check_header(header, self._engine)
        names = self._processing.outputs_to_compute(header.message)
        inputs = read_inputs(header)
        begin = time.perf_counter()
        inputs = self._processing.preprocess(inputs)
        return DecodedQuery(query, header.message, inputs, names, time.perf_counter() - begin)

    def write(
        self, opened: DecodedQuery, outputs: Sequence[Array], compute_s: float, batch: int = 1
    ) -> RunEnded:
        """Make the response of what the model computed.

        Args:
            opened: the query.
            outputs: those that it names, in that order.
            compute_s: seconds that the model took, for all of the batch.
            batch: how many queries it computed together.

        Raises:
            InvalidInput: an output cannot be had in the form that was asked for.
        """
        computed = time.perf_counter()
        header, request = opened.header, opened.query.request
        asked = self._processing.requested_outputs(
            header, dict(zip(opened.names, outputs, strict=True))
        )
        parts = write_response(header, self._engine.version, asked)
        if header.parameters and header.parameters[TIMINGS].bool_param:
            finished_s = time.perf_counter() - computed
            parts.append(write_timings(opened.preprocess_s, compute_s, finished_s))
        response: bytes | ArenaRef
        if isinstance(request, ArenaRef) and INLINE_BYTES < sum(map(len, parts)) <= SLOT_BYTES:
            # The inputs have served, and the response may take their place.
            response = self._arena.write(request.slot, parts)
        else:
            response = b"".join(parts)
        tally = Tally(1, compute_s=compute_s, batch=batch)
        return RunEnded(opened.query.run, Outcome.COMPLETED, tally, response)
