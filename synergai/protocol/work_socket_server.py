"""Server of work sockets, whose first message is an id; see ``synergai.protocol.work_socket``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.tls_listener import TlsListener
from synergai.protocol.work_socket import WorkSocket
from synergai.runtime.ports import bind

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from synergai.protocol.request_codec import Buffer

_AUTHENTICATE_WITHIN_S: Final = 10.0
_MAX_ID_BYTES: Final = 64
MAX_UNAUTHENTICATED: Final = 128
"""Limit of sockets without a connection id; beyond it, the oldest is closed.

An agent presents its id as soon as it is connected, so the oldest is the least likely to be one,
whereas refusing the newest would let idle connections lock all agents out. The limit is above the
connections that can be accepted before their first bytes are read, and with those of the HTTP port
below 1024, the usual limit of file descriptors.
"""


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
        for socket in list(self._sockets):
            socket.close()
        for server in self._servers:
            await server.wait_closed()

    def _accept(self) -> WorkSocket:
        """Return the protocol of a new socket, which must present a connection id in time."""

        def on_id(connection_id: Buffer) -> None:
            timer.cancel()
            self._unauthenticated.pop(socket, None)
            self._on_authenticated(bytes(connection_id).decode("ascii", "replace"), socket)

        def on_timeout() -> None:
            socket.close(InvalidInput(f"no connection id within {_AUTHENTICATE_WITHIN_S:g} s"))

        def on_ended(_: asyncio.Future[None]) -> None:
            timer.cancel()
            self._sockets.discard(socket)
            self._unauthenticated.pop(socket, None)

        socket = WorkSocket(on_id, _MAX_ID_BYTES)
        timer = asyncio.get_running_loop().call_later(_AUTHENTICATE_WITHIN_S, on_timeout)
        socket.closed.add_done_callback(on_ended)
        self._sockets.add(socket)
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.close(Unavailable("too many work sockets have no connection id"))
        self._unauthenticated[socket] = None
        return socket
