"""A query of a job on its way through stages: its input in each of them, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from gateway.fleet.routes import asked_of_exit
from gateway.records.results import InputResult
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.protocol.job_inputs import input_of, split_input
from synergai.protocol.stages import as_inputs, of_stage
from synergai.protocol.validation import EXIT, LABEL
from synergai.versions import engine_of_stage, split_version

if TYPE_CHECKING:
    from gateway.fleet.routes import Outputs
    from synergai.core.route import Route
    from synergai.protocol.request_codec import Buffer, RequestDecoder, RequestHeader


@dataclass(slots=True, eq=False)
class StagedQuery:
    """A query that is not recorded.

    Attributes:
        inputs: serialised ``Input`` of the client.
        room_bytes: room for its tensors that it has.
        client: the request of the client, without its tensors.
        data: serialised ``Input`` of the stage that it waits for.
        result: its outcome, once it is done.
        correct: whether a sample was answered correctly; None without a label.
    """

    index: int
    inputs: bytes
    room_bytes: int
    name: str = ""
    client: ModelInferRequest = field(default_factory=ModelInferRequest)
    data: bytes = b""
    result: InputResult | None = None
    correct: bool | None = None

    @property
    def size(self) -> int:
        """Size of what it keeps in memory: inputs of the client, and those of its stage."""
        return len(self.inputs) + (0 if self.data is self.inputs else len(self.data))

    def begin(self, route: Route, decoder: RequestDecoder) -> None:
        """Prepare the input of the first stage, whose worker reports what is wrong with it."""
        self.data = self.inputs
        try:
            found = split_input(self.inputs)
            self.name = found.name
            if found.request is not None:
                header = decoder.decode(found.request)
                self.client = header.message
                self.data = _first_input(route, self.inputs, header)
        except (DecodeError, InvalidInput):
            pass

    def pass_on(self, route: Route, position: int, outputs: Outputs) -> None:
        """Prepare the input of the engine at a position from the outputs of the stage before."""
        message, _ = outputs
        engine, is_last = route.engines[position], route.is_last(position)
        if LABEL in message.parameters:
            self.client = ModelInferRequest(parameters={LABEL: message.parameters[LABEL]})
        if route.begins_again(position):
            self.data = self.inputs
            return
        request = of_stage(
            as_inputs(*outputs),
            self.client,
            engine,
            is_last=is_last,
            asked=asked_of_exit(route, position),
        )
        if is_last:  # the response is that of the whole engine
            request.message.model_name, _ = split_version(engine_of_stage(engine.name))
        self.data = input_of(request.message, request.raw)

    def finish(self, response: Buffer, error: str) -> None:
        """Keep the result, and no more inputs."""
        self.data = self.inputs = b""
        self.result = InputResult(self.index, self.name, response, error)


def _first_input(route: Route, data: bytes, header: RequestHeader) -> bytes:
    """Return the input of the first stage for a request of the client."""
    answers, asked = route.engines[0].exit is not None, asked_of_exit(route, 0)
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
