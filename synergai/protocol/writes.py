"""The status of calls that the server ends while the client writes.

If a write fails, grpc.aio gives the call the status INTERNAL, "Internal error from Core". The
status that the server sent, which arrives a moment later, is then ignored: a client would not learn
why it was refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import grpc

CallT = TypeVar("CallT", bound="grpc.aio.Call")


def keep_status(call: CallT) -> CallT:
    """Have a call end with the server's status although a write has failed; return the call.

    Calls that are not grpcio's, or of a version without what this replaces, stay as they are.
    """
    inner: Any = getattr(call, "_cython_call", None)
    if hasattr(inner, "set_internal_error"):
        call._cython_call = _FailingWrites(inner)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
    return call


class _FailingWrites:
    """Grpcio's call, which waits for its status after a failed write."""

    def __init__(self, call: Any) -> None:
        self._call = call
        # Used for every message, and so not looked up each time.
        self.send_serialized_message = call.send_serialized_message
        self.receive_serialized_message = call.receive_serialized_message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def set_internal_error(self, _text: str) -> None:
        """Do nothing: grpcio waits for the status next, which the server has sent."""
