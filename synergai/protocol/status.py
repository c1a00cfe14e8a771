"""The one place where domain errors become gRPC status codes, and back.

Texts that cross the wire are the errors' own messages; nothing else about the server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from synergai import errors

if TYPE_CHECKING:
    from synergai.oip import inference_pb2

CODES: Final[dict[type[errors.SynergaiError], grpc.StatusCode]] = {
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Conflict: grpc.StatusCode.ALREADY_EXISTS,
    errors.EngineUnusable: grpc.StatusCode.FAILED_PRECONDITION,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.NotSupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.InternalFault: grpc.StatusCode.INTERNAL,
}

RETRY_METADATA: Final = "grpc-retry-pushback-ms"
"""Trailer in which a server says after how many milliseconds a client should try again."""

RETRY_AFTER_MS: Final[dict[grpc.StatusCode, int]] = {
    # Shed: a queue empties within a moment, or the client takes its work elsewhere.
    grpc.StatusCode.RESOURCE_EXHAUSTED: 250,
    # Nobody there: agents and gateways take about a second to come back.
    grpc.StatusCode.UNAVAILABLE: 1000,
}
"""When trying again may help, and when at the earliest."""

_ERRORS: Final = {code: error for error, code in CODES.items()}


def code_of(error: errors.SynergaiError) -> grpc.StatusCode:
    """The status code for `error`, by its class or the nearest base that has one."""
    for cls in type(error).__mro__:
        if cls in CODES:
            return CODES[cls]
    return grpc.StatusCode.INTERNAL


def error_from_status(code: grpc.StatusCode, details: str) -> errors.SynergaiError:
    """The domain error for a status code and its text."""
    return _ERRORS.get(code, errors.SynergaiError)(details)


STATUS_PARAMETER: Final = "status"
"""Parameter of a failed response in a stream: the name of the code that a call of its own would
have ended with. The protocol's stream has only a text for it."""


def stream_error(
    error: errors.SynergaiError, request_id: str = ""
) -> inference_pb2.ModelStreamInferResponse:
    """The response to one request of a stream that failed; its id tells which."""
    from synergai.oip import inference_pb2

    failed = inference_pb2.ModelInferResponse(id=request_id)
    failed.parameters[STATUS_PARAMETER].string_param = code_of(error).name
    return inference_pb2.ModelStreamInferResponse(error_message=str(error), infer_response=failed)


def error_from_stream(
    answer: inference_pb2.ModelStreamInferResponse,
) -> errors.SynergaiError:
    """The domain error for a failed response in a stream.

    Its `STATUS_PARAMETER` says which; other servers leave it out, and the cause is unknown then.
    """
    status = answer.infer_response.parameters.get(STATUS_PARAMETER)
    name = status.string_param if status else ""
    code = grpc.StatusCode.__members__.get(name, grpc.StatusCode.UNKNOWN)
    return error_from_status(code, answer.error_message)
