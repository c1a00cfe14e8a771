"""Requests of the stages of an engine: the outputs of a stage are the inputs of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.errors import InternalError
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.protocol.request_codec import RequestHeader, parse_response
from synergai.versions import split_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Engine
    from synergai.protocol.request_codec import Buffer

_TIMEOUT: Final = "timeout"
_OF_ALL_STAGES: Final = frozenset({"priority", "synergai_tenant", "synergai_timings"})
"""Parameters that do not concern the outputs."""


def of_stage(
    header: RequestHeader, client: ModelInferRequest, stage: Engine, *, is_last: bool
) -> RequestHeader:
    """Return the request of a stage: the inputs of `header`, and what the client asked for."""
    name, version = split_version(stage.name)
    message = ModelInferRequest(
        model_name=name, model_version=version, id=client.id, inputs=header.message.inputs
    )
    for each, parameter in client.parameters.items():
        if is_last or each in _OF_ALL_STAGES:
            message.parameters[each].CopyFrom(parameter)
    if is_last:
        message.outputs.extend(client.outputs)
    message.parameters.pop(_TIMEOUT, None)  # the budget of the stage has it
    return RequestHeader(message, header.raw)


def parse_stage_response(
    stage: Engine, response: Buffer, *, held: bool = False
) -> tuple[ModelInferResponse, Sequence[Buffer]]:
    """Parse the response of a stage; return its raw contents apart, none if a worker holds them.

    Raises:
        InternalError: a worker sent something else.
    """
    try:
        if held:
            return ModelInferResponse.FromString(bytes(response)), ()
        return parse_response(response)
    except DecodeError:
        raise InternalError(f"a worker's response of stage {stage.name!r} is malformed") from None


def as_inputs(message: ModelInferResponse, contents: Sequence[Buffer]) -> RequestHeader:
    """Return the outputs of a stage as inputs."""
    inputs = (
        ModelInferRequest.InferInputTensor(
            name=output.name, datatype=output.datatype, shape=output.shape
        )
        for output in message.outputs
    )
    return RequestHeader(ModelInferRequest(inputs=inputs), contents)
