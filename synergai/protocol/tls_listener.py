"""A TLS server that can end a connection before its handshake is complete.

asyncio's own server keeps the transport of such a connection to itself, so a client that connects
and sends nothing keeps a file descriptor until the handshake times out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from synergai.protocol.work_socket import WorkSocket

_BACKLOG: Final = 100
_ACCEPT_AGAIN_S: Final = 0.5
"""Pause after a connection could not be accepted, such as for want of file descriptors."""

_log = logging.getLogger(__name__)


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
