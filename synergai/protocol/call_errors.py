"""What failed calls mean to whoever made them."""

from __future__ import annotations

import re
from typing import Final

import grpc

from synergai.errors import DeadlineExceeded, NotSupported, SynergaiError, Unavailable
from synergai.protocol.status import error_from_status

_NOBODY: Final = re.compile(
    r"^failed to connect to all addresses.*: ([^:]+)$|^errors resolving .*: ([^:\]]+)\]?$",
    re.DOTALL,
)
_NOT_ENCRYPTED: Final = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of the authority given with --tls-ca",
    "Hostname Verification Check failed": "its certificate is for another host",
    "WRONG_VERSION_NUMBER": "it does not encrypt; leave --tls-ca out",
}
"""Why encrypting fails, by what gRPC says of it."""
_NOT_GRPC: Final = "Failed parsing HTTP/2"
_NO_SUCH_CALL: Final = "Method not found!"
"""What gRPC servers say of a call that nobody wrote, ours excepted."""
_ERRNO: Final = re.compile(r" \(\d+\)$")
_LOST: Final = re.compile(
    "Socket closed|Stream removed|Cancelling all calls|"
    "Connection reset|GOAWAY|keepalive|Broken pipe"
)


def error_from_call(target: str, code: grpc.StatusCode, details: str) -> SynergaiError:
    """What a failed call means, in words that name the server instead of the transport.

    Args:
        target: what to call the server.
        code: how the call ended.
        details: the text that it ended with; the server's own, or else gRPC's.
    """
    if code is grpc.StatusCode.UNAVAILABLE:
        for sign, why in _NOT_ENCRYPTED.items():
            if sign in details:
                return Unavailable(f"no encrypted connection to {target}: {why}")
        if _NOT_GRPC in details:
            return Unavailable(f"what listens at {target} does not speak gRPC")
        if nobody := _NOBODY.search(details):
            cause = _ERRNO.sub("", next(filter(None, nobody.groups()))).strip().lower()
            if cause == "socket closed":
                return Unavailable(
                    f"{target} closes the connection at once; does it encrypt (--tls-ca)?"
                )
            return Unavailable(f"nobody answers at {target} ({cause}); is it running?")
        if _LOST.search(details):
            return Unavailable(f"the connection to {target} was lost")
    if details == _NO_SUCH_CALL:
        return NotSupported(f"{target} does not know this call; is it a SynergAI gateway?")
    if details == "Deadline Exceeded":
        return DeadlineExceeded("there was no answer in time")
    return error_from_status(code, details or code.name)
