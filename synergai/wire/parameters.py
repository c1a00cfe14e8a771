"""Parameters of the Open Inference Protocol, and the extensions to Triton's stream.

A client may send many independent queries over one stream. It announces how many it keeps in
flight, and can cancel a single one without ending the stream.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from synergai.errors import InvalidInput
from synergai.names import validate_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from synergai.oip import inference_pb2
    from synergai.oip.inference_pb2 import ModelInferRequest

TENANT_METADATA: Final = "synergai-tenant"
"""Metadata with the tenant of all requests in the call that name none themselves."""
REQUEST_ID: Final = "request-id"
"""Metadata and header with the id of a request: of a call, as its client chose it, and of every
error; in a stream, a parameter of the failed response."""
TRACEPARENT: Final = "traceparent"
"""Metadata and header with the trace context of a call (W3C Trace Context); in a stream, a
parameter of the request."""
_VALID: Final = re.compile("[!-~]{1,128}")
"""What can be printed and sent in a header; clients may write anything."""


def valid_id(text: str) -> str:
    return text if _VALID.fullmatch(text) else ""


class CallIds(NamedTuple):
    """What a client says to find a call again: an id, and the trace that it is part of."""

    chosen: str = ""
    traceparent: str = ""


NO_IDS: Final = CallIds()


def ids_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> CallIds:
    """Return the valid id and the trace context in a call's metadata."""
    chosen = traceparent = ""
    for key, content in metadata:
        if key == REQUEST_ID:
            chosen = valid_id(str(content))
        elif key == TRACEPARENT:
            traceparent = str(content)
    return CallIds(chosen, traceparent) if chosen or traceparent else NO_IDS


def tenant_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the tenant in a call's metadata; empty if there is none."""
    for key, content in metadata:
        if key == TENANT_METADATA:
            return checked_tenant(str(content))
    return ""


def checked_tenant(text: str) -> str:
    """Return `text` if it is a valid tenant name; empty is the default tenant."""
    return validate_name(text, "tenant name") if text else ""


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


def is_cancel_request(message: ModelInferRequest) -> bool:
    parameters = message.parameters
    return CANCEL_PARAMETER in parameters and parameters[CANCEL_PARAMETER].bool_param
