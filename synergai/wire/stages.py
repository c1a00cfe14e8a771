"""Requests of the stages of an engine: the outputs of a stage are the inputs of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import InternalError
from synergai.names import engine_of_stage, split_version
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.wire.request_codec import RequestHeader, split_response
from synergai.wire.validation import EXIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Engine
    from synergai.wire.request_codec import Buffer

_TIMEOUT: Final = "timeout"
_FLOOR: Final = "synergai_min_accuracy"
_OF_ALL_STAGES: Final = frozenset({"priority", "synergai_tenant", "synergai_timings"})
"""Parameters that do not concern the outputs."""


def of_stage(
    header: RequestHeader,
    client: ModelInferRequest,
    stage: Engine,
    *,
    is_last: bool,
    asked: str = "",
) -> RequestHeader:
    """Return the request of a stage: the inputs of `header`, and what the client asked for.

    Args:
        stage: it may also be the whole engine.
        asked: what is asked of its exit, see `synergai.wire.validation.EXIT`.
    """
    name, version = split_version(stage.name)
    message = ModelInferRequest(
        model_name=name, model_version=version, id=client.id, inputs=header.message.inputs
    )
    answers = is_last or stage.exit is not None
    for each, parameter in client.parameters.items():
        if answers or each in _OF_ALL_STAGES:
            message.parameters[each].CopyFrom(parameter)
    if answers:
        message.outputs.extend(client.outputs)
    message.parameters.pop(_TIMEOUT, None)  # the budget of the stage has it
    if stage.stage_of:
        message.parameters.pop(_FLOOR, None)  # its exit has been chosen by it
    message.parameters.pop(EXIT, None)  # which is not for clients
    if asked:
        message.parameters[EXIT].string_param = asked
    return RequestHeader(message, header.raw)


def parse_stage_response(
    stage: Engine, response: Buffer, *, held: bool = False
) -> tuple[ModelInferResponse, Sequence[Buffer]]:
    """Parse the response of a stage; return its raw contents apart.

    There are none if a worker holds them, or if the response is that of the engine.
    """
    malformed = InternalError(f"a worker's response of stage {stage.name!r} is malformed")
    try:
        rest, contents = split_response(response)
        message = ModelInferResponse.FromString(rest)
    except DecodeError:
        raise malformed from None
    if held or has_left(message):
        return message, ()
    if len(contents) != len(message.outputs):
        raise malformed
    return message, contents


def has_left(message: ModelInferResponse) -> bool:
    """Return whether the response of a stage is that of its engine, which the query has left."""
    return EXIT in message.parameters


def as_inputs(message: ModelInferResponse, contents: Sequence[Buffer]) -> RequestHeader:
    """Return the outputs of a stage as inputs."""
    inputs = (
        ModelInferRequest.InferInputTensor(
            name=output.name, datatype=output.datatype, shape=output.shape
        )
        for output in message.outputs
    )
    return RequestHeader(ModelInferRequest(inputs=inputs), contents)


def as_whole(response: Buffer, stage: Engine) -> bytes:
    name, version = split_version(engine_of_stage(stage.name))
    whole = ModelInferResponse(model_name=name, model_version=version)
    # Fields that are appended to a message replace those before them.
    return b"".join((response, whole.SerializeToString()))
