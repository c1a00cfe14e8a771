"""Mapping between domain errors and the status codes of gRPC and HTTP, in both directions.

The status details are the error's message; nothing else about the server is sent.
"""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import grpc

from synergai import errors
from synergai.errors import DeadlineExceeded, InvalidInput, NotSupported, SynergaiError, Unavailable
from synergai.runtime.text import encodable
from synergai.wire.parameters import REQUEST_ID

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
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotSupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

SERVER_CODES: Final = {**CODES, errors.WrongState: grpc.StatusCode.FAILED_PRECONDITION}
"""The same, with the classes whose codes mean another class to clients."""

RETRY_METADATA: Final = "grpc-retry-pushback-ms"
"""Trailer with the number of milliseconds after which a client should retry."""

QUOTA_METADATA: Final = "synergai-quota"
"""Trailer and header with the name of the quota that refused a call."""

RETRY_AFTER_MS: Final[dict[grpc.StatusCode, int]] = {
    # Shed: queues drain quickly, and clients may go to another server instead.
    grpc.StatusCode.RESOURCE_EXHAUSTED: 250,
    # Agents and gateways reconnect within about a second.
    grpc.StatusCode.UNAVAILABLE: 1000,
}
"""Retry delays of the status codes for which retrying may help."""

MAX_RETRY_AFTER_MS: Final = 3_600_000
"""Longest retry delay; gRPC clients read 32 bits of it."""

HTTP_STATUSES: Final[dict[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.CANCELLED: 499,  # not registered, but what proxies use for it
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""HTTP status by gRPC status code."""

MAX_DETAILS: Final = 1000
"""Longest error message for a client, in characters: it may quote the client's input."""

_ERRORS: Final = {code: error for error, code in CODES.items()}


def status_code(error: errors.SynergaiError) -> grpc.StatusCode:
    """Return the status code of the error's class or of its nearest base class that has one."""
    for cls in type(error).__mro__:
        if cls in SERVER_CODES:
            return SERVER_CODES[cls]
    return grpc.StatusCode.INTERNAL


def error_details(error: errors.SynergaiError) -> str:
    """Return the message of an error for a client, which can be sent with anything it quotes."""
    return encodable(str(error)[:MAX_DETAILS])


def http_status(error: errors.SynergaiError) -> int:
    if isinstance(error, errors.MessageTooLarge):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return HTTP_STATUSES[status_code(error)]


def retry_after_ms(error: errors.SynergaiError) -> int | None:
    """Return the retry delay in milliseconds; None if retrying does not help."""
    if isinstance(error, errors.QuotaExceeded) and error.retry_after_s is not None:
        return min(math.ceil(error.retry_after_s * 1000), MAX_RETRY_AFTER_MS)
    if isinstance(error, errors.MessageTooLarge):
        return None
    return RETRY_AFTER_MS.get(status_code(error))


def retry_after_s(error: errors.SynergaiError) -> int | None:
    """Return the retry delay for HTTP, in whole seconds; None if retrying does not help."""
    after_ms = retry_after_ms(error)
    return None if after_ms is None else math.ceil(after_ms / 1000)


def error_from_status(code: grpc.StatusCode, details: str) -> errors.SynergaiError:
    return _ERRORS.get(code, errors.SynergaiError)(details)


WORKERS_FAILED: Final = "the workers that ran"
"""How the error of a query begins that its workers have failed at, and may fail at again."""
STATUS_PARAMETER: Final = "status"
"""Parameter of a failed response in a stream for the name of the status code that the request would
have got as a unary call; the protocol's stream has only an error text."""


def stream_error(
    error: errors.SynergaiError, request_id: str = ""
) -> inference_pb2.ModelStreamInferResponse:
    from synergai.oip import inference_pb2

    failed = inference_pb2.ModelInferResponse(id=request_id)
    failed.parameters[STATUS_PARAMETER].string_param = status_code(error).name
    if error.request_id:
        failed.parameters[REQUEST_ID].string_param = error.request_id
    return inference_pb2.ModelStreamInferResponse(
        error_message=error_details(error), infer_response=failed
    )


_UNREACHABLE: Final = re.compile(
    r"^failed to connect to all addresses.*: ([^:]+)$|^errors resolving .*: ([^:\]]+)\]?$",
    re.DOTALL,
)
_TLS_FAILURES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not signed by the given authority",
    "Hostname Verification Check failed": "its certificate is for another host",
    "WRONG_VERSION_NUMBER": "it does not use TLS; give no authority",
    "Handshake read failed": "it closed the connection; without TLS, give no authority",
}
"""Causes of failed TLS handshakes by a fragment of gRPC's message."""
_NOT_GRPC: Final = "Failed parsing HTTP/2"
_UNKNOWN_METHOD: Final = "Method not found!"
"""Details with which other gRPC servers reject unknown methods."""
_ERRNO: Final = re.compile(r" \(\d+\)$")
_CONNECTION_LOST: Final = re.compile(
    "Socket closed|Stream removed|Cancelling all calls|"
    "Connection reset|GOAWAY|keepalive|Broken pipe"
)
_TOO_LARGE: Final = re.compile(r"Sent message larger than max \((\d+) vs\. (\d+)\)")


def error_from_call(target: str, code: grpc.StatusCode, details: str) -> SynergaiError:
    """Return the domain error for a failed call, worded for the caller."""
    if code is grpc.StatusCode.UNAVAILABLE:
        for fragment, cause in _TLS_FAILURES.items():
            if fragment in details:
                return Unavailable(f"cannot open a TLS connection to {target}: {cause}")
        if _NOT_GRPC in details:
            return Unavailable(f"the server at {target} does not speak gRPC")
        if unreachable := _UNREACHABLE.search(details):
            cause = _ERRNO.sub("", next(filter(None, unreachable.groups()))).strip().lower()
            if cause == "socket closed":
                return Unavailable(
                    f"{target} closed the connection at once; does it need TLS (SYNERGAI_TLS_CA)?"
                )
            if cause.startswith("secure read failed"):
                return Unavailable(
                    f"{target} ended the TLS handshake; does it need a certificate of the client "
                    "(SYNERGAI_TLS_CERT and SYNERGAI_TLS_KEY)?"
                )
            return Unavailable(f"cannot connect to {target} ({cause}); is it running?")
        if _CONNECTION_LOST.search(details):
            return Unavailable(f"the connection to {target} was lost")
    if too_large := _TOO_LARGE.search(details):
        size, limit = map(int, too_large.groups())
        return InvalidInput(
            f"the request has {size:,} bytes, and a message has at most {limit:,}: send less at a "
            "time"
        )
    if details == _UNKNOWN_METHOD:
        return NotSupported(f"{target} does not implement this call; is it a SynergAI gateway?")
    if details == "Deadline Exceeded":
        return DeadlineExceeded("no response before the deadline")
    return error_from_status(code, details or code.name)
