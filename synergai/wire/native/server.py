"""The server of a port, which keeps its clients within limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.runtime.addresses import bind
from synergai.runtime.tasks import TaskBag
from synergai.wire.native.connection import SILENT_S, UNREAD_S, CallTurns, ClientConnection
from synergai.wire.native.handled_calls import Handlers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    import grpc

    from synergai.wire.native.http2 import ConnectionFault
    from synergai.wire.server_call import Interceptor

_BACKLOG: Final = 1024
_ACCEPT_AGAIN_S: Final = 0.5
"""Pause after a connection could not be accepted, such as for want of file descriptors."""
_PROBE_AFTER_S: Final = 30
"""Time without bytes of a client after which the system asks whether its machine is there."""
_PROBE_INTERVAL_S: Final = 10
_UNSENT_BYTES: Final = 128 << 10
"""Bytes that the system takes before it can send them. The answer to a ping waits behind them."""
_DRAIN_S: Final = 2.0
"""Time that clients which are behind get to read the last responses of a server that stops."""
_IDLE_S: Final = 60.0
"""Time after which a connection without calls is closed. Clients reconnect with their next call."""
_CHECK_IDLE_S: Final = 5.0
_LOG_INTERVAL_S: Final = 10.0

_log = logging.getLogger(__name__)


class NativeServer:
    """A gRPC server on the event loop.

    Args:
        max_connections: connections at a time; further ones are closed.
        max_bytes: largest message of a client.
        interceptor: as of `Handlers`.
        max_connection_age_s: age at which connections are retired, 10 % more or less; 0 for none.
        max_connection_age_grace_s: time that its calls get to end then; 0 for any.

    Attributes:
        handlers: the handlers, and the calls that they handle.
    """

    def __init__(
        self,
        max_connections: int,
        max_bytes: int,
        interceptor: Interceptor | None = None,
        max_connection_age_s: float = 0.0,
        max_connection_age_grace_s: float = 0.0,
    ) -> None:
        self.handlers = Handlers(max_bytes, interceptor)
        self.handlers.connection_age = max_connection_age_s, max_connection_age_grace_s
        self._turns = CallTurns()
        self._max_connections = max_connections
        self._tls: ssl.SSLContext | None = None
        self._listeners: Sequence[socket.socket] = ()
        self._accepting = TaskBag()
        self._clients: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._log_after = float("-inf")

    def bind(self, address: str, tls: ssl.SSLContext | None = None) -> str:
        """Bind to an address and return the bound one."""
        self._tls = tls
        self._listeners = bind(address, _BACKLOG)
        host, _, _ = address.rpartition(":")
        return f"{host}:{self._listeners[0].getsockname()[1]}"

    def start(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Accept calls for these handlers."""
        self.handlers.add(handlers)
        for listener in self._listeners:
            self._accepting.start(self._accept(listener))
        self._accepting.start(self._close_idle())

    def retire(self) -> None:
        """Accept no more connections, and close each one once the calls on it have ended.

        Clients learn that they shall begin no further calls. Idempotent.
        """
        self._stop_listening()
        for client in tuple(self._clients):
            client.retire()

    async def stop(self, grace: float) -> None:
        """Stop once all calls have been answered; end those that take longer than `grace` seconds.

        Clients see calls that were ended as UNAVAILABLE. Those that are behind get some more time
        to read.
        """
        self.retire()
        await self._wait_empty(grace)
        for client in tuple(self._clients):
            if not client.is_behind:
                client.end()
        await self._wait_empty(_DRAIN_S)
        self.release()
        await self._accepting.close()
        await self.handlers.tasks.close()

    def release(self) -> None:
        """Release the port and close all connections, which `stop` does as well. Idempotent."""
        self._stop_listening()
        for client in tuple(self._clients):
            client.abort()

    def _stop_listening(self) -> None:
        self._accepting.cancel()
        for listener in self._listeners:
            listener.close()

    async def _wait_empty(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()

    def _leave(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self._turns.leave(client.begin_calls)
        if not self._clients:
            self._empty.set()

    def _log_refusal(self, address: str, fault: ConnectionFault) -> None:
        """Log that a client was refused, once in a while."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_after:
            self._log_after = now + _LOG_INTERVAL_S
            _log.warning("closing connections such as that of %s, which sent %s", address, fault)

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(self._clients) >= self._max_connections:
                connection.close()
                continue
            _watch(connection)
            client = ClientConnection(self.handlers, self._turns, self._log_refusal, self._leave)
            self._clients.add(client)
            self._empty.clear()
            client.opening = asyncio.create_task(self._open(client, connection))
            client.opening.add_done_callback(partial(self._on_opened, client, connection))

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_IDLE_S)
            idle_since = time.monotonic() - _IDLE_S
            for client in tuple(self._clients):
                client.close_idle(idle_since)

    async def _open(self, client: ClientConnection, connection: socket.socket) -> None:
        """Connect a client, which shakes hands first if the connection is encrypted."""
        timeout = {} if self._tls is None else {"ssl_handshake_timeout": SILENT_S}
        with suppress(OSError):  # routine: a port scan, or a certificate that has expired
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: client, connection, ssl=self._tls, **timeout
            )

    def _on_opened(
        self, client: ClientConnection, connection: socket.socket, _: asyncio.Task[None]
    ) -> None:
        """Close the connection of a client that was not connected.

        It may have been cancelled before the first step of the task, which then has done nothing.
        """
        if not client.is_open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            self._leave(client)


def _watch(connection: socket.socket) -> None:
    """Let the system send at once, and close the connection of a client whose machine has gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * UNREAD_S))
