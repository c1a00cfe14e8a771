"""Free the operations of calls that grpcio abandons.

grpc.aio starts operations of a call, awaits a future, and then frees their memory. If the client
leaves, the future fails or its task is cancelled, and the memory is lost: about 110 bytes per call
with grpcio 1.85.1, so that 5,000 calls a second that are opened and reset cost a server 2 GB an
hour. Here, the operations are freed when gRPC completes them, whether or not they are still
awaited. The main branch of gRPC frees them, too.

Remove it once no supported version of grpcio is affected.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # not in the stubs of grpcio

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    StartBatch = Callable[[object, tuple[object, ...], Any], Coroutine[Any, Any, None]]
    """Takes a call, its operations and what makes futures: an event loop, or a `_Batch`."""
    Start = Callable[[object, tuple[object, ...], asyncio.AbstractEventLoop], Awaitable[None]]

_AFFECTED: Final = ("1.84.", "1.85.")


def free_abandoned_operations() -> None:
    """Replace the function that runs operations in grpcio, if its version loses memory.

    For the whole process. Idempotent.
    """
    original = cygrpc.execute_batch
    if grpc.__version__.startswith(_AFFECTED) and not hasattr(original, "frees_operations"):
        cygrpc.execute_batch = freeing(original)


def freeing(original: StartBatch) -> Start:
    """Return a function like `original` that always runs to its end.

    Args:
        original: starts operations of a call, awaits one future of the event loop that it is
            given, and frees them.
    """

    def execute_batch(
        call: object, operations: tuple[object, ...], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Future[None]:
        # No coroutine: every call of the gateway awaits three of these.
        waiter: asyncio.Future[None] = loop.create_future()
        _Batch(waiter, loop).start(original, call, operations)
        return waiter

    execute_batch.frees_operations = True  # type: ignore[attr-defined]  # marks the replacement
    return execute_batch


class _Batch:
    """Operations in flight; stands for the event loop and the future of `original`.

    gRPC completes the future on the event loop's thread. Only then, `original` resumes and frees
    the operations, as if they had succeeded; a failure is passed to who awaits them.
    """

    __slots__ = ("_coroutine", "_loop", "_thread", "_waiter")

    _coroutine: Coroutine[Any, Any, None]

    def __init__(self, waiter: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
        self._waiter = waiter
        self._loop = loop
        # Compared instead of the running loop, which takes a system call to find.
        self._thread = get_ident()

    def start(self, original: StartBatch, call: object, operations: tuple[object, ...]) -> None:
        """Run `original` until it awaits the future."""
        self._coroutine = original(call, operations, self)
        self._coroutine.send(None)

    # --- event loop ---------------------------------------------------------------------

    def create_future(self) -> _Batch:
        return self

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        # gRPC hands completed operations to any event loop of the process, in its thread.
        if get_ident() == self._thread:
            callback(*arguments)
        else:
            self._loop.call_soon_threadsafe(callback, *arguments)

    # --- future -------------------------------------------------------------------------

    def __await__(self) -> Generator[None]:
        yield

    def cancelled(self) -> bool:
        return False

    def set_result(self, _result: None) -> None:
        self._finish(None)

    def set_exception(self, error: Exception) -> None:
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        try:
            self._coroutine.send(None)
        except StopIteration:
            pass
        except Exception as failure:  # noqa: BLE001  # passed on to who awaits the operations
            error = failure
        if self._waiter.done():  # cancelled
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)
