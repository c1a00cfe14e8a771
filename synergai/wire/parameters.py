"""Parameters of the Open Inference Protocol, and the extensions to Triton's stream.

A client may send many independent queries over one stream. It announces how many it keeps in
flight, and can cancel a single one without ending the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.oip import inference_pb2
    from synergai.oip.inference_pb2 import ModelInferRequest


ParameterValue: TypeAlias = bool | int | float | str


def read_parameters(
    parameters: Mapping[str, inference_pb2.InferParameter],
) -> dict[str, ParameterValue]:
    """Return parameter values by name, without those that have no value."""
    values = {}
    for name, parameter in parameters.items():
        if choice := parameter.WhichOneof("parameter_choice"):
            values[name] = getattr(parameter, choice)
    return values


def set_parameter(parameter: inference_pb2.InferParameter, value: ParameterValue) -> None:
    """Set `parameter` to `value`, in the field of its type."""
    match value:
        case bool():
            parameter.bool_param = value
        case int() if -(2**63) <= value < 2**63:
            parameter.int64_param = value
        case int() if 0 <= value < 2**64:
            parameter.uint64_param = value
        case int():
            raise InvalidInput(f"parameter {value} does not fit into 64 bits")
        case float():
            parameter.double_param = value
        case str():
            parameter.string_param = value


CANCEL_PARAMETER: Final = "synergai_cancel"
"""Parameter that, if true, turns a message into the cancellation of the request with its id."""
WINDOW_METADATA: Final = "synergai-window"
"""Metadata key of a stream for the number of requests that its client keeps in flight."""


def cancel_request(request_id: str) -> ModelInferRequest:
    """Return the message that cancels the request with this id."""
    from synergai.oip import inference_pb2

    message = inference_pb2.ModelInferRequest(id=request_id)
    message.parameters[CANCEL_PARAMETER].bool_param = True
    return message


def is_cancel_request(message: ModelInferRequest) -> bool:
    """Return whether `message` cancels a request instead of being one."""
    parameters = message.parameters
    return CANCEL_PARAMETER in parameters and parameters[CANCEL_PARAMETER].bool_param
