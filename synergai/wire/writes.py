"""Writing of the requests of a call, and its status if the server ends it early.

If a write fails, grpc.aio gives the call the status INTERNAL, "Internal error from Core". The
status that the server sent, which arrives a moment later, is then ignored: a client would not learn
why it was refused.

Remove `keep_status` once a call of grpc.aio keeps the server's status after a failed write, and
`write_all` once it stops iterating over requests when the server has ended the call.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from synergai.runtime.tasks import is_being_cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CallT = TypeVar("CallT", bound="grpc.aio.Call")
RequestT = TypeVar("RequestT")
_ENDED: Final = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""What a write raises once the call has ended; the reader gets the reason."""


def keep_status(call: CallT) -> CallT:
    """Have a call end with the server's status although a write has failed; return the call.

    Calls that are not grpcio's, or of a version without what this replaces, stay as they are.
    """
    inner: Any = getattr(call, "_cython_call", None)
    if hasattr(inner, "set_internal_error"):
        call._cython_call = _FailingWrites(inner)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
    return call


async def write_all(
    call: grpc.aio.StreamUnaryCall[RequestT, Any] | grpc.aio.StreamStreamCall[RequestT, Any],
    requests: AsyncIterator[RequestT],
) -> None:
    """Write requests to a call, and half-close it; return early if the call has ended.

    To be run in a task that is cancelled with the call: the one in which gRPC iterates over
    requests continues if the server has ended the call.
    """
    try:
        async for request in requests:
            try:
                await call.write(request)
            except _ENDED:
                return
        with suppress(*_ENDED):
            await call.done_writing()
    except BaseException:
        if not is_being_cancelled():
            call.cancel()
        raise


class _FailingWrites:
    """Grpcio's call, which waits for its status after a failed write."""

    def __init__(self, call: Any) -> None:
        self._call = call
        # Used for every message, and so not looked up each time.
        self.send_serialized_message = call.send_serialized_message
        self.receive_serialized_message = call.receive_serialized_message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def set_internal_error(self, text: str) -> None:
        """Do nothing unless the call was misused: grpcio waits for the status that was sent."""
        if "grpc_call_start_batch" in text:  # two writes at once, after which no status arrives
            self._call.set_internal_error(text)
