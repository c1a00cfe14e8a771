"""A gRPC server that accepts calls again after its accept loop has ended.

grpcio decodes the method of each call in the loop that accepts calls. A method that is not UTF-8
ends that loop, and with it the server: it closes its port and its idle connections. Open calls
continue, but no other call is accepted. Such a server is replaced by a new one.

The port belongs to a front, which passes connections on to the current server.

Remove it once a method that is not UTF-8 does not end the accept loop of any supported version.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from synergai.errors import InternalError, Unavailable
from synergai.protocol import rpc
from synergai.protocol.grpcio.abandoned_calls import free_abandoned_operations
from synergai.protocol.grpcio.front import Front
from synergai.runtime.ports import bind

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import grpc

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_CHECK_S: Final = 0.25
"""Interval at which a server is checked if grpcio does not log that its loop has ended."""
_SHUTDOWN_S: Final = 0.002
"""Time in which grpcio begins the shutdown of a server that has ended."""
_MOST_ENDED: Final = 8
"""Ended servers that are kept for their open calls; each may have all its connections."""
_ENDED_GRACE_S: Final = 1.0
"""Time that the calls of a further one get."""
_UNLIMITED_S: Final = 1e9
_LOG_INTERVAL_S: Final = 10.0

_notified: Final[set[Callable[[], None]]] = set()
"""Called when grpcio logs that an accept loop has ended; the record does not say which one."""


class ResilientServer:
    """A gRPC server that is replaced if it ends unexpectedly; its open calls continue.

    Args:
        make: factory of servers, which are all the same.
        on_failure: called once if the server has ended and cannot be replaced.
        max_connections: connections at a time; further ones are closed.

    Attributes:
        restarts: how often the server was replaced.
    """

    def __init__(
        self,
        make: Callable[[], grpc.aio.Server],
        on_failure: Callable[[InternalError], None],
        max_connections: int,
    ) -> None:
        free_abandoned_operations()
        self.restarts = 0
        self._make = make
        self._on_failure = on_failure
        self._server = make()
        self._address = ""
        self._max_connections = max_connections
        self._front: Front | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="synergai-grpc-")
        self._numbers = itertools.count()
        self._handlers: Sequence[grpc.GenericRpcHandler] = ()
        self._ended: dict[grpc.aio.Server, asyncio.Task[None]] = {}
        self._check = asyncio.Event()
        self._replacing: asyncio.Task[None] | None = None
        self._log_after = float("-inf")
        self._unlogged = 0

    def bind(self, address: str, tls: ssl.SSLContext | None = None) -> str:
        """Bind to an address and return the bound one."""
        listeners = bind(address, _BACKLOG, both_families=True)
        host, _, _ = address.rpartition(":")
        self._address = f"{host}:{listeners[0].getsockname()[1]}"
        self._front = Front(listeners, self._max_connections, tls)
        self._bind(self._server, self._front)
        return self._address

    def release(self) -> None:
        """Release the port, which `stop` does as well. Idempotent."""
        if self._front is not None:
            self._front.close()
        self._folder.cleanup()

    def _bind(self, server: grpc.aio.Server, front: Front) -> None:
        path = f"{self._folder.name}/{next(self._numbers)}"
        rpc.bind(server, f"unix:{path}")
        front.path = path

    async def start(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Accept calls for these handlers."""
        self._handlers = handlers
        self._server.add_generic_rpc_handlers(handlers)
        await self._server.start()
        if self._front is None:
            raise RuntimeError("the server is not bound")
        self._front.start()
        for name in ("grpc._cython.cygrpc", "asyncio"):
            # Once for all servers: a logger does not add the same filter again.
            logging.getLogger(name).addFilter(_filter_ended_loops)
        _notified.add(self._check.set)
        self._replacing = asyncio.create_task(self._replace_ended(self._front))

    def retire(self) -> None:
        """Ask clients to begin no further calls, and close connections without any. Idempotent."""
        if self._front is not None:
            self._front.retire()

    async def stop(self, grace: float) -> None:
        """Stop once all calls have been answered; end those that take longer than `grace` seconds.

        Clients see calls that were ended as UNAVAILABLE.
        """
        if self._front is not None:
            self._front.retire()
            await self._front.drain(grace)
        _notified.discard(self._check.set)
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.wait([self._replacing])
        await asyncio.gather(*(_stop(each, 0.0) for each in (self._server, *self._ended)))
        if self._ended:
            await asyncio.wait(self._ended.values())
        self.release()

    async def _replace_ended(self, front: Front) -> None:
        while True:
            cause = await self._wait_ended()
            try:
                await self._replace(front)
            except Unavailable as error:
                self._on_failure(InternalError(f"a gRPC server ended ({cause}): {error}"))
                return
            self.restarts += 1
            self._log_restart(cause)

    async def _wait_ended(self) -> Exception:
        """Wait until the server has ended unexpectedly; return the cause."""
        while True:
            self._check.clear()
            try:
                await self._server.wait_for_termination(0)
            except Exception as error:  # noqa: BLE001 - any exception may end the loop
                return error
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._check.wait()

    async def _replace(self, front: Front) -> None:
        """Start a new server behind the front."""
        server = self._make()
        server.add_generic_rpc_handlers(self._handlers)
        # If the shutdown had not begun, `_stop` would cancel the open calls.
        await asyncio.sleep(_SHUTDOWN_S)
        self._bind(server, front)
        ended, self._server = self._server, server
        self._ended[ended] = asyncio.create_task(self._drain(ended))
        await server.start()

    async def _drain(self, server: grpc.aio.Server) -> None:
        """Keep an ended server until its open calls have ended."""
        grace = _UNLIMITED_S if len(self._ended) <= _MOST_ENDED else _ENDED_GRACE_S
        try:
            await _stop(server, grace)
        finally:
            del self._ended[server]

    def _log_restart(self, cause: Exception) -> None:
        self._unlogged += 1
        now = asyncio.get_running_loop().time()
        if now < self._log_after:
            return
        _log.warning(
            "a call ended the gRPC server on %s (%s); it was replaced, %d times in all since the "
            "last such message",
            self._address,
            cause,
            self._unlogged,
        )
        self._log_after, self._unlogged = now + _LOG_INTERVAL_S, 0


async def _stop(server: grpc.aio.Server, grace: float) -> None:
    try:
        await server.stop(grace)
    except Exception:  # noqa: BLE001 - what ended its accept loop at this moment, raised once
        await server.stop(grace)


def _filter_ended_loops(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that grpcio and asyncio log for an ended accept loop."""
    # grpcio logs the exception in place of a message, asyncio in the usual way.
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(record.msg, BaseException):
        error = record.msg
    if error is None or not _is_of_accept_loop(error.__traceback__):
        return True
    for notify in tuple(_notified):
        notify()
    return False


def _is_of_accept_loop(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_code.co_name.endswith("_server_main_loop"):
            return True
        trace = trace.tb_next
    return False
