"""A listener in front of a gRPC server that passes on connections within `Http2Limits`.

The server is on a Unix socket, and knows a connection by the name to which its other end is bound:
that of the client.

Remove it once the server of the ports has such limits itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.grpcio.call_turns import CallTurns
from synergai.protocol.grpcio.http2_limits import Http2Limits
from synergai.protocol.grpcio.open_calls import GOAWAY, OpenCalls
from synergai.protocol.peer import Peer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

_ACCEPT_AGAIN_S: Final = 0.5
"""Pause after a connection could not be accepted, such as for want of file descriptors."""
_SILENT_S: Final = 10.0
"""Time within which a client shakes hands, and within which it sends its first bytes after that."""
_UNREAD_S: Final = 60.0
"""Time within which a client reads something of what was sent, or is gone. While it reads nothing,
nothing is read from the server either, not even that it has closed the connection."""
_PROBE_AFTER_S: Final = 30
"""Time without bytes of a client after which the system asks whether its machine is there."""
_PROBE_INTERVAL_S: Final = 10
_REFUSED_S: Final = 1.0
"""Time for which the connection of a client beyond a limit stays open without being read, so that
it does not come back at once."""
_DRAIN_S: Final = 2.0
"""Time that clients which are behind get to read the last responses of a server that stops."""
_IDLE_S: Final = 60.0
"""Time after which a connection without calls to a server in this process is closed. Clients
reconnect with their next call."""
_CHECK_IDLE_S: Final = 5.0
_CHUNK_BYTES: Final = 64 << 10
_LOG_INTERVAL_S: Final = 10.0

_log = logging.getLogger(__name__)
_peers: Final[dict[str, Peer]] = {}
"""The clients by the name of the server's peer, which is unique on this machine and cannot be
guessed."""


def peer_address(context: Any) -> str:
    """Return the address of the client of a call."""
    name = _name_of(context)
    return name.partition("/")[2] or name


def peer_of(context: Any) -> Peer:
    """Return the client of a call."""
    try:
        return _peers[_name_of(context)]
    except KeyError:
        raise Unavailable("the connection of this call has closed") from None


def _name_of(context: Any) -> str:
    return unquote(context.peer()).removeprefix("unix-abstract:")


class Front:
    """Passes connections on to a gRPC server.

    Args:
        listeners: sockets that listen for clients.
        max_connections: connections at a time; further ones are closed.
        tls: context for encrypted connections; None for plaintext.
        make_client: makes the client of a connection from its address, if the server is in this
            process.

    Attributes:
        path: Unix socket of the server.
        turns: the turns of the clients.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        max_connections: int,
        tls: ssl.SSLContext | None = None,
        make_client: Callable[[Front, str], ClientConnection] | None = None,
    ) -> None:
        self.path = ""
        self._make_client = make_client or RelayedClient
        self._closes_idle = make_client is not None
        self._tls = tls
        self.turns = CallTurns() if make_client is None else CallTurns(0.0)
        self._listeners = listeners
        self._max_connections = max_connections
        self._accepting: list[asyncio.Task[None]] = []
        self._clients: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._log_after = float("-inf")

    def start(self) -> None:
        """Accept connections."""
        self._accepting = [asyncio.create_task(self._accept(each)) for each in self._listeners]
        if self._closes_idle:
            self._accepting.append(asyncio.create_task(self._close_idle()))

    def stop_listening(self) -> None:
        """Accept no more connections. Idempotent."""
        for task in self._accepting:
            task.cancel()
        for listener in self._listeners:
            listener.close()

    def retire(self) -> None:
        """Accept no more connections, and close each one once the calls on it have ended.

        Clients learn that they shall begin no further calls. Idempotent.
        """
        self.stop_listening()
        for client in tuple(self._clients):
            client.retire()

    async def drain(self, grace: float = 0.0) -> None:
        """Wait until the connections that were retired are closed.

        Calls that take longer than `grace` seconds end with their connections. Clients that are
        behind get some more time to read.
        """
        await self._wait_empty(grace)
        for client in tuple(self._clients):
            if not client.is_behind:
                client.end()
        await self._wait_empty(_DRAIN_S)

    async def _wait_empty(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._empty.wait()

    def close(self) -> None:
        """Close all connections."""
        self.stop_listening()
        for client in tuple(self._clients):
            client.abort()

    def leave(self, client: ClientConnection) -> None:
        """Forget a connection."""
        self._clients.discard(client)
        self.turns.leave(client.begin_calls)
        if not self._clients:
            self._empty.set()

    def log_refusal(self, address: str, fault: InvalidInput) -> None:
        """Log that a client was refused, once in a while."""
        now = asyncio.get_running_loop().time()
        if now >= self._log_after:
            self._log_after = now + _LOG_INTERVAL_S
            _log.warning("closing connections such as that of %s, which sent %s", address, fault)

    async def _accept(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        while True:
            try:
                connection, peer = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(self._clients) >= self._max_connections:
                connection.close()
                continue
            _watch(connection)
            client = self._make_client(self, _format_address(*peer))
            self._clients.add(client)
            self._empty.clear()
            client.opening = asyncio.create_task(self._open(client, connection))

    async def _close_idle(self) -> None:
        """Close connections without calls, as grpcio does itself."""
        while True:
            await asyncio.sleep(_CHECK_IDLE_S)
            idle_since = time.monotonic() - _IDLE_S
            for client in tuple(self._clients):
                client.close_idle(idle_since)

    async def _open(self, client: ClientConnection, connection: socket.socket) -> None:
        """Connect a client, which shakes hands first if the connection is encrypted."""
        timeout = {} if self._tls is None else {"ssl_handshake_timeout": _SILENT_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: client, connection, ssl=self._tls, **timeout
            )
        except OSError:  # routine: a port scan, or a certificate that has expired
            self.leave(client)
        except asyncio.CancelledError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            self.leave(client)
            raise


class ConnectionCalls(Protocol):
    """The calls that are open on a connection."""

    @property
    def idle_since(self) -> float | None:
        """When the last call ended, by the monotonic clock; None during a call."""

    @property
    def between_frames(self) -> bool:
        """Whether the front can send a frame of its own."""

    @property
    def ended(self) -> bool:
        """Whether all calls have ended, and the client has received all pings."""

    def end_soon(self) -> bytes:
        """Return frames that ask the client to begin no further calls."""

    def close(self) -> None:
        """End all calls: the client has left."""


class ClientConnection(asyncio.Protocol):
    """The connection of a client. What the server is, subclasses know.

    Args:
        name: name of the client for the contexts of its calls.
        calls: the calls that are open on the connection.

    Attributes:
        opening: task that makes the connection.
    """

    opening: asyncio.Task[None]
    _transport: asyncio.Transport

    def __init__(self, front: Front, address: str, name: str, calls: ConnectionCalls) -> None:
        self._front = front
        self._address = address
        self._name = name
        self._limits = Http2Limits()
        self._calls = calls
        self._idle = self._retiring = self._retired = False
        self._unread = b""
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = self._is_connected = False
        self._reading = True
        self._full = False
        self._ended = False

    @property
    def is_behind(self) -> bool:
        """Whether the client has not read all that was sent."""
        return self.opening.done() and self._transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        """Wait for the first bytes."""
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(_SILENT_S, self.abort)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the server, calls taking turns."""
        if not self._ended:
            self._unread += data
            self._front.turns.serve(self.begin_calls)

    def begin_calls(self, calls: int) -> tuple[int, bool]:
        """Pass on what the client sent, with this many calls at most.

        Returns:
            How many calls, and whether the client has sent another.
        """
        if self._ended or self._full:
            return 0, False
        if not self._has_begun:
            self._has_begun = True
            self._stop_timer()
            self._begin()
        try:
            size = self._limits.receive(self._unread, calls)
            data, self._unread = self._unread[:size], self._unread[size:]
            self._pass_on(data)
        except InvalidInput as fault:
            self._refuse(fault)
            return 0, False
        self._read_if_wanted()
        self._retire_further()
        return self._limits.begun, self._limits.held and not self._full

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the server's connection."""
        self._ended = True
        self._stop_timer()
        self._front.leave(self)
        _peers.pop(self._name, None)
        self._calls.close()
        self._close_server()

    def set_full(self, *, full: bool) -> None:
        """Pass on no more of the client's bytes while the server is to read earlier ones."""
        self._full = full
        self._read_if_wanted()
        if not full:
            self._front.turns.serve(self.begin_calls)

    def close_idle(self, idle_since: float) -> None:
        """Ask the client to leave if it has had no calls since then; the next time, close."""
        since = self._calls.idle_since
        if since is None or since > idle_since:
            self._idle = False
        elif self._idle:
            self.end()
        else:
            self._idle = True
            self._transport.write(GOAWAY)

    def retire(self) -> None:
        """Ask the client to begin no further calls, and close the connection after its last one."""
        self._retiring = True
        if self._has_begun:
            self._retire_further()
        else:
            self.end()

    def end(self) -> None:
        """Pass on nothing more, and close the connection once the client has read what was sent."""
        if self._ended:
            return
        if not self.opening.done():
            self.opening.cancel()
            return
        self._ended = True
        self._stop_timer()
        self._close_server()
        if self._transport.can_write_eof():
            # Closed while the client sends something, it would lose what it has not read yet.
            self._transport.resume_reading()
            with suppress(OSError):  # the client may have left
                self._transport.write_eof()
            self._timer = asyncio.get_running_loop().call_later(_UNREAD_S, self.abort)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.opening.done():
            self._transport.abort()
        else:
            self.opening.cancel()

    def respond(self, data: bytes) -> None:
        """Send bytes of the server."""
        if not self._ended:
            self._limits.respond(len(data))
            self._transport.write(data)
            self._retire_further()

    def _begin(self) -> None:
        """Connect to the server, and call `_connected` then."""
        raise NotImplementedError

    def _connected(self) -> None:
        """Begin to read all that the client sends, as the server is there."""
        self._is_connected = True
        _peers[self._name] = Peer(self._transport)
        self._read_if_wanted()

    def _pass_on(self, data: bytes) -> None:
        """Pass bytes of the client on to the server."""
        raise NotImplementedError

    def _close_server(self, *, at_once: bool = False) -> None:
        """Close the connection to the server."""

    def _retire_further(self) -> None:
        if not self._retiring or self._ended or not self._calls.between_frames:
            return
        if not self._retired:
            self._retired = True
            self._transport.write(self._calls.end_soon())
        elif self._calls.ended:
            self.end()

    def _read_if_wanted(self) -> None:
        wanted = self._is_connected and not (self._limits.held or self._full)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _refuse(self, fault: InvalidInput) -> None:
        self._ended = True
        self._front.log_refusal(self._address, fault)
        self._transport.pause_reading()
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(_REFUSED_S, self.abort)
        self._close_server(at_once=True)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class RelayedClient(ClientConnection):
    """A client whose bytes pass to a server on the Unix socket of the front."""

    def __init__(self, front: Front, address: str) -> None:
        self._open = OpenCalls()
        super().__init__(front, address, f"{secrets.token_hex(8)}/{address}", self._open)
        self._server: _Server | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []

    def pause_writing(self) -> None:
        """Read no more of the server's bytes until the client has read."""
        if self._server is not None:
            self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading the server's bytes."""
        if self._server is not None:
            self._server.transport.resume_reading()

    def relay(self, data: bytes) -> None:
        """Send bytes of the server, up to the end of a frame."""
        if not self._ended:
            self.respond(self._open.respond(data))

    def _begin(self) -> None:
        self._connecting = asyncio.create_task(self._connect())

    def _pass_on(self, data: bytes) -> None:
        self._open.receive(data)
        if self._server is not None:
            self._server.transport.write(data)
        else:
            self._waiting.append(data)

    def _close_server(self, *, at_once: bool = False) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._server is None:
            return
        if at_once:
            self._server.refuse()
        else:
            self._server.transport.close()

    async def _connect(self) -> None:
        try:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.setblocking(False)
                connection.bind(f"\0{self._name}")
                connection.connect(self._front.path)
                _, self._server = await asyncio.get_running_loop().create_unix_connection(
                    partial(_Server, self, connection), sock=connection
                )
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            _log.warning("cannot pass on a connection: %s", error.strerror)
            self.abort()
            return
        for data in self._waiting:  # which may be too much for the server
            self._server.transport.write(data)
        self._waiting.clear()
        self._connected()


def _watch(connection: socket.socket) -> None:
    """Let the system close the connection of a client whose machine has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * _UNREAD_S))


def _format_address(host: str, port: int, *_: int) -> str:
    mapped = host.removeprefix("::ffff:")
    return f"ipv6:[{host}]:{port}" if ":" in mapped else f"ipv4:{mapped}:{port}"


class _Server(asyncio.Protocol):
    """The server's end of a connection."""

    transport: asyncio.Transport

    def __init__(self, client: RelayedClient, connection: socket.socket) -> None:
        self._client = client
        self._connection = connection
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a stream
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Send bytes to the client."""
        self._client.relay(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Close the client's connection."""
        if self._refused:
            return
        if error is not None:
            # A write failed because the server has closed. What it sent before may be unread.
            with suppress(OSError):
                while data := self._connection.recv(_CHUNK_BYTES):
                    self._client.relay(data)
        self._client.end()

    def refuse(self) -> None:
        """Close the connection without that of the client."""
        self._refused = True
        self.transport.abort()

    def pause_writing(self) -> None:
        """Read no more of the client's bytes."""
        self._client.set_full(full=True)

    def resume_writing(self) -> None:
        """Resume reading the client's bytes."""
        self._client.set_full(full=False)
