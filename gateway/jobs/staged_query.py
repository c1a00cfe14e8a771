"""A query on its way through stages, and its input in each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.protocol.job_inputs import input_of, split_input
from synergai.protocol.stages import as_inputs, of_stage
from synergai.protocol.validation import EXIT, LABEL
from synergai.versions import engine_of_stage, split_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.ways import Way
    from gateway.fleet.worker import HeldTensors
    from gateway.records.results import InputResult
    from synergai.oip.inference_pb2 import ModelInferResponse
    from synergai.protocol.request_codec import Buffer, RequestDecoder, RequestHeader


@dataclass(slots=True, eq=False)
class StagedQuery:
    """A query on its way.

    Attributes:
        client: the request of the client, without its tensors.
        inputs: serialised ``Input`` of the client, if the query may begin again with it.
        data: serialised ``Input`` of the stage that it waits for.
        pull: its tensors, if a worker holds them; `data` lacks them.
        result: its outcome, once it has left the stages.
        correct: whether a sample was answered correctly; None without a label.
    """

    index: int
    room_bytes: int
    name: str = ""
    client: ModelInferRequest = field(default_factory=ModelInferRequest)
    inputs: bytes = b""
    data: bytes = b""
    repeats: int = 0
    pull: HeldTensors | None = None
    result: InputResult | None = None
    correct: bool | None = None

    @property
    def tensor_bytes(self) -> int:
        """Size of its input in the stage that it waits for."""
        return len(self.data) + (0 if self.pull is None else self.pull.size)

    def drop_tensors(self, dispatcher: Dispatcher) -> None:
        """Let the worker that holds its tensors drop them."""
        if self.pull is not None:
            dispatcher.drop(self.pull)
            self.pull = None

    def begin(self, way: Way, data: bytes, decoder: RequestDecoder) -> None:
        """Take the input of the client, as the first stage needs it.

        Its worker reports what is wrong with it.
        """
        self.data = data
        self.inputs = data if way.begins_again(len(way.engines) - 1) else b""
        try:
            found = split_input(data)
            self.name = found.name
            if found.request is not None:
                header = decoder.decode(found.request)
                self.client = header.message
                self.data = _first_input(way, data, header)
        except (DecodeError, InvalidInput):
            pass

    def pass_on(
        self, way: Way, position: int, message: ModelInferResponse, contents: Sequence[Buffer]
    ) -> None:
        """Take the outputs of the stage before as the input of the engine at a position."""
        engine, is_last = way.engines[position], position + 1 == len(way.engines)
        if LABEL in message.parameters:
            self.client = ModelInferRequest(parameters={LABEL: message.parameters[LABEL]})
        if way.begins_again(position):
            self.data = self.inputs
            return
        outputs = as_inputs(message, contents)
        request = of_stage(outputs, self.client, engine, is_last=is_last, asked=way.asks(position))
        if is_last:  # the response is that of the whole engine
            request.message.model_name, _ = split_version(engine_of_stage(engine.name))
        self.data = input_of(request.message, request.raw)


def _first_input(way: Way, data: bytes, header: RequestHeader) -> bytes:
    """Return the input of the first stage for a request of the client."""
    answers, asked = way.engines[0].exit is not None, way.asks(0)
    is_asked = EXIT in header.message.parameters  # which is not for clients
    if not (asked or is_asked) and (answers or not header.message.outputs):
        return data
    message = ModelInferRequest()
    message.CopyFrom(header.message)
    message.parameters.pop(EXIT, None)
    if asked:
        message.parameters[EXIT].string_param = asked
    if not answers:
        message.ClearField("outputs")  # the last stage returns them
    return input_of(message, header.raw)
