"""A listener in front of a gRPC server that passes on connections within `Http2Limits`.

The server is on a Unix socket, and knows a connection by the name to which its other end is bound:
that of the client.

Remove it once the server of the ports has such limits itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from synergai.errors import InvalidInput
from synergai.protocol.grpcio.http2_limits import Http2Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKLOG: Final = 1024
_SILENT_S: Final = 10.0
"""Time within which a client sends its first bytes."""
_UNREAD_S: Final = 60.0
"""Time within which a client reads something of what was sent, or is gone. While it reads nothing,
nothing is read from the server either, not even that it has closed the connection."""
_REFUSED_S: Final = 1.0
"""Time for which the connection of a client beyond a limit stays open without being read, so that
it does not come back at once."""
_DRAIN_S: Final = 2.0
"""Time that clients get to read the last responses of a server that has stopped."""
_CHUNK_BYTES: Final = 64 << 10
_LOG_INTERVAL_S: Final = 10.0

_log = logging.getLogger(__name__)
_number = itertools.count()


def peer_address(peer: str) -> str:
    """Return the address of a client from gRPC's name of a peer.

    Args:
        peer: what the ``peer()`` of a call returns.
    """
    return unquote(peer).removeprefix("unix-abstract:").partition("/")[2] or peer


class Front:
    """Passes connections on to a gRPC server.

    Args:
        listeners: sockets that listen for clients.
        max_connections: connections at a time; further ones are closed.

    Attributes:
        path: Unix socket of the server.
    """

    def __init__(self, listeners: Sequence[socket.socket], max_connections: int) -> None:
        self.path = ""
        self._listeners = listeners
        self._max_connections = max_connections
        self._servers: list[asyncio.Server] = []
        self._clients: set[_Client] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._log_after = float("-inf")

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._servers.append(
                await loop.create_server(
                    partial(_Client, self), sock=listener.dup(), backlog=_BACKLOG
                )
            )

    def stop_listening(self) -> None:
        """Accept no more connections. Idempotent."""
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()

    async def drain(self) -> None:
        """Wait until clients have read what the server sent before it stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._empty.wait()

    def close(self) -> None:
        """Close all connections."""
        self.stop_listening()
        for client in tuple(self._clients):
            client.abort()

    def admit(self, client: _Client) -> bool:
        """Return whether there is room for a new connection."""
        if len(self._clients) >= self._max_connections:
            return False
        self._clients.add(client)
        self._empty.clear()
        return True

    def leave(self, client: _Client) -> None:
        """Forget a connection."""
        self._clients.discard(client)
        if not self._clients:
            self._empty.set()

    def log_refusal(self, address: str, fault: InvalidInput) -> None:
        """Log that a client was refused, once in a while."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_after:
            self._log_after = now + _LOG_INTERVAL_S
            _log.warning("closing connections such as that of %s, which sent %s", address, fault)


class _Client(asyncio.Protocol):
    """The connection of a client."""

    _transport: asyncio.Transport
    _address = ""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._limits = Http2Limits()
        self._server: _Server | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        """Wait for the first bytes."""
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        mapped = host.removeprefix("::ffff:")
        self._address = f"ipv6:[{host}]:{port}" if ":" in mapped else f"ipv4:{mapped}:{port}"
        if not self._front.admit(self):
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * _UNREAD_S)
        )
        self._timer = asyncio.get_running_loop().call_later(_SILENT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the server."""
        if self._refused:
            return
        try:
            self._limits.receive(data)
        except InvalidInput as fault:
            self._refuse(fault)
            return
        if self._server is not None:
            self._server.transport.write(data)
            return
        self._waiting.append(data)
        if self._connecting is None:
            self._stop_timer()
            self._transport.pause_reading()
            self._connecting = asyncio.create_task(self._connect())

    def respond(self, data: bytes) -> None:
        """Send bytes of the server."""
        self._limits.respond(len(data))
        self._transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the server's connection."""
        self._stop_timer()
        self._front.leave(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._server is not None:
            self._server.transport.close()

    def pause_writing(self) -> None:
        """Read no more of the server's bytes until the client has read."""
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on reading the server's bytes."""
        if self._server is not None:
            self._server.transport.resume_reading()

    def pause_reading(self) -> None:
        """Read no more of the client's bytes until the server has read."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading the client's bytes."""
        self._transport.resume_reading()

    def end(self) -> None:
        """Close the connection once the client has read what was sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _refuse(self, fault: InvalidInput) -> None:
        self._refused = True
        self._front.log_refusal(self._address, fault)
        self._transport.pause_reading()
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(_REFUSED_S, self.abort)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._server is not None:
            self._server.refuse()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            # Unique on this machine; the part after the slash is what `peer_address` returns.
            connection.bind(f"\0synergai-{os.getpid()}-{next(_number)}/{self._address}")
            connection.connect(self._front.path)
            _, self._server = await asyncio.get_running_loop().create_unix_connection(
                partial(_Server, self, connection), sock=connection
            )
        except OSError as error:
            connection.close()
            _log.warning("cannot pass on a connection: %s", error.strerror)
            self.abort()
            return
        except asyncio.CancelledError:
            connection.close()
            raise
        self._transport.resume_reading()
        for data in self._waiting:  # which may pause reading again
            self._server.transport.write(data)
        self._waiting.clear()


class _Server(asyncio.Protocol):
    """The server's end of a connection."""

    transport: asyncio.Transport

    def __init__(self, client: _Client, connection: socket.socket) -> None:
        self._client = client
        self._connection = connection
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._client.respond(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Close the client's connection."""
        if self._refused:
            return
        if error is not None:
            # A write failed because the server has closed. What it sent before may be unread.
            with suppress(OSError):
                while data := self._connection.recv(_CHUNK_BYTES):
                    self._client.respond(data)
        self._client.end()

    def refuse(self) -> None:
        """Close the connection without that of the client."""
        self._refused = True
        self.transport.abort()

    def pause_writing(self) -> None:
        """Read no more of the client's bytes."""
        self._client.pause_reading()

    def resume_writing(self) -> None:
        """Go on reading the client's bytes."""
        self._client.resume_reading()
