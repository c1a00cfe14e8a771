"""Server of work sockets, whose first message is an id; see ``synergai.wire.work_socket``."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.addresses import bind
from synergai.runtime.tasks import TaskBag
from synergai.wire.work_socket import WorkSocket

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from synergai.wire.request_codec import Buffer

_AUTHENTICATE_WITHIN_S: Final = 10.0
_MAX_ID_BYTES: Final = 64
MAX_UNAUTHENTICATED: Final = 128
"""Limit of sockets without a connection id; beyond it, the oldest is closed.

An agent presents its id as soon as it is connected, so the oldest is the least likely to be one,
whereas refusing the newest would let idle connections lock all agents out. The limit is above the
connections that can be accepted before their first bytes are read, and with those of the HTTP port
below 1024, the usual limit of file descriptors.
"""
_BACKLOG: Final = 100
_ACCEPT_AGAIN_S: Final = 0.5
"""Pause after a connection could not be accepted, such as for want of file descriptors."""

_log = logging.getLogger(__name__)


class WorkSocketServer:
    """Server that accepts work sockets.

    `on_authenticated` takes over a socket with the id that it presented. If it raises a
    `SynergaiError`, the socket is closed. `setting` is the option for the port.
    """

    def __init__(
        self,
        on_authenticated: Callable[[str, WorkSocket], None],
        tls: ssl.SSLContext | None = None,
        *,
        setting: str = "--work-port",
    ) -> None:
        self._setting = setting
        self._on_authenticated = on_authenticated
        self._servers: list[asyncio.Server] = []
        self._listener = (
            None if tls is None else TlsListener(self._accept, tls, _AUTHENTICATE_WITHIN_S)
        )
        self._sockets: set[WorkSocket] = set()
        self._unauthenticated: dict[WorkSocket, None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listen on `port`, or on a free one if it is 0; return the port."""
        try:
            sockets = bind(f"{host}:{port}")
        except Unavailable as error:
            raise Unavailable(f"{error} with {self._setting}") from None
        if self._listener is not None:
            self._listener.start(sockets)
        else:
            loop = asyncio.get_running_loop()
            for each in sockets:
                self._servers.append(await loop.create_server(self._accept, sock=each))
        bound: int = sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Close the listener and all sockets."""
        if self._listener is not None:
            await self._listener.close()
        for server in self._servers:
            server.close()
        for each in list(self._sockets):
            each.close()
        for server in self._servers:
            await server.wait_closed()

    def _accept(self) -> WorkSocket:
        """Return the protocol of a new socket, which must present a connection id in time."""

        def on_id(connection_id: Buffer) -> None:
            timer.cancel()
            self._unauthenticated.pop(accepted, None)
            self._on_authenticated(bytes(connection_id).decode("ascii", "replace"), accepted)

        def on_timeout() -> None:
            accepted.close(InvalidInput(f"no connection id within {_AUTHENTICATE_WITHIN_S:g} s"))

        def on_ended(_: asyncio.Future[None]) -> None:
            timer.cancel()
            self._sockets.discard(accepted)
            self._unauthenticated.pop(accepted, None)

        accepted = WorkSocket(on_id, _MAX_ID_BYTES)
        timer = asyncio.get_running_loop().call_later(_AUTHENTICATE_WITHIN_S, on_timeout)
        accepted.closed.add_done_callback(on_ended)
        self._sockets.add(accepted)
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.close(Unavailable("too many work sockets have no connection id"))
        self._unauthenticated[accepted] = None
        return accepted


class TlsListener:
    """Accepts TLS connections, whose handshakes end when their protocols are closed."""

    def __init__(
        self, make: Callable[[], WorkSocket], tls: ssl.SSLContext, handshake_timeout_s: float
    ) -> None:
        self._make = make
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._listeners: list[socket.socket] = []
        self._tasks = TaskBag()

    def start(self, sockets: list[socket.socket]) -> None:
        """Listen on bound sockets, which are closed with the listener."""
        self._listeners = sockets
        for listener in sockets:
            listener.setblocking(False)
            listener.listen(_BACKLOG)
            self._tasks.start(self._accept(listener))

    async def close(self) -> None:
        """Stop listening, and end the handshakes."""
        await self._tasks.close()
        self._close_listeners()

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("cannot accept a work socket: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            protocol = self._make()
            handshake = self._tasks.start(self._shake_hands(protocol, connection))
            protocol.closed.add_done_callback(partial(_end, handshake))

    async def _shake_hands(self, protocol: WorkSocket, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            # Failed handshakes are routine: a port scan, or a certificate that has expired.
            with suppress(OSError):
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._tls,
                    ssl_handshake_timeout=self._handshake_timeout_s,
                )
                return
            protocol.close()
        except asyncio.CancelledError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise


def _end(handshake: asyncio.Task[None], _closed: asyncio.Future[None]) -> None:
    handshake.cancel()
