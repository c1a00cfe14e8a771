"""Translation of failed gRPC calls into domain errors for the caller."""

from __future__ import annotations

import re
from typing import Final

import grpc

from synergai.errors import DeadlineExceeded, InvalidInput, NotSupported, SynergaiError, Unavailable
from synergai.wire.status import error_from_status

_UNREACHABLE: Final = re.compile(
    r"^failed to connect to all addresses.*: ([^:]+)$|^errors resolving .*: ([^:\]]+)\]?$",
    re.DOTALL,
)
_TLS_FAILURES: Final = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not signed by the authority of --tls-ca",
    "Hostname Verification Check failed": "its certificate is for another host",
    "WRONG_VERSION_NUMBER": "it does not use TLS; remove --tls-ca",
    "Handshake read failed": "it closed the connection; if it does not use TLS, remove --tls-ca",
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
                    f"{target} closed the connection at once; does it need TLS (--tls-ca)?"
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
