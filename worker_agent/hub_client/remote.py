"""Link to a gateway over the network: a gRPC channel for control, a work socket for work."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import grpc

from synergai.errors import Unavailable
from synergai.protocol import rpc
from synergai.protocol.tls import ClientTls, open_channel
from synergai.protocol.work_socket import WorkSocket
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from synergai.protocol.request_codec import Buffer

_SOCKET_TIMEOUT_S: Final = 10.0


class RemoteHub:
    """A hub at an address; implements `HubLink`.

    Args:
        target: address of the hub, ``host:port``.
        max_message_bytes: message size limit in both directions.
        read_tls: returns the TLS of the connection; called before each attempt, because
            certificate files may be renewed.
    """

    def __init__(
        self, target: str, max_message_bytes: int, read_tls: Callable[[], ClientTls] = ClientTls
    ) -> None:
        self.target = target
        self._max_message_bytes = max_message_bytes
        self._read_tls = read_tls

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[RemoteConnection, None]:
        """Open a channel and a control stream on it."""
        options = [
            *rpc.channel_options(self._max_message_bytes),
            # Otherwise a new channel inherits the backoff of the previous one.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        tls = await asyncio.to_thread(self._read_tls)
        async with open_channel(self.target, options, tls.channel) as channel:
            connection = RemoteConnection(channel, self.target, self._max_message_bytes, tls.socket)
            try:
                yield connection
            finally:
                connection.close()


class RemoteConnection:
    """A connection to a remote hub; implements `HubConnection`.

    Args:
        channel: gRPC channel to the hub.
        target: address of the hub, ``host:port``.
        max_message_bytes: message size limit in both directions.
        tls: TLS context of the work socket; None for plaintext.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target: str,
        max_message_bytes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = target.rpartition(":")[0].strip("[]")
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        # The stubs of grpc.aio leave the types of a raw stream open.
        control: Any = channel.stream_stream(
            "/synergai.v1.Hub/Control",
            response_deserializer=rpc.deserializer(hub_pb2.GatewayControl),
        )
        self._control = control()

    async def read(self) -> hub_pb2.GatewayControl:
        """Return the next control message."""
        message = await self._control.read()
        if message is grpc.aio.EOF:
            raise Unavailable("the gateway closed the connection")
        if isinstance(message, rpc.Malformed):
            raise message.error()
        return cast("hub_pb2.GatewayControl", message)

    async def write(self, data: bytes) -> None:
        """Send a control message."""
        try:
            await self._control.write(data)
        except asyncio.InvalidStateError:
            # The call has ended; its reader raises the reason.
            await asyncio.Event().wait()

    async def open_work(
        self, registered: hub_pb2.Registered, on_message: Callable[[Buffer], None]
    ) -> WorkSocket:
        """Open a work socket to the port that the gateway has announced."""
        if not registered.work_port:
            raise Unavailable("the gateway has no port for work sockets: upgrade it")
        return await open_work_socket(
            self._host,
            registered.work_port,
            registered.session,
            on_message,
            tls=self._tls,
            max_message_bytes=self._max_message_bytes,
            timeout_s=_SOCKET_TIMEOUT_S,
        )

    def close(self) -> None:
        """Cancel the control stream."""
        self._control.cancel()


async def open_work_socket(
    host: str,
    port: int,
    connection_id: str,
    on_message: Callable[[Buffer], None],
    *,
    tls: ssl.SSLContext | None,
    max_message_bytes: int,
    timeout_s: float,
) -> WorkSocket:
    """Open a work socket.

    Args:
        host: host of the gateway.
        port: port of its work sockets.
        connection_id: id of the registration.
        on_message: called with each serialised ``WorkOrders``.
        tls: context to verify the gateway and to present a certificate; None for plaintext.
        max_message_bytes: size limit of received messages.
        timeout_s: timeout of connecting, TLS handshake included, in seconds.

    Raises:
        Unavailable: the port cannot be reached, or the TLS handshake failed.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, socket = await loop.create_connection(
                lambda: WorkSocket(on_message, max_message_bytes),
                host,
                port,
                ssl=tls,
                server_hostname=None if tls is None else host,
            )
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"cannot open a work socket to {host}:{port}: {_reason(error, timeout_s)}"
        ) from None
    socket.send((connection_id.encode(),))
    return socket


def _reason(error: OSError | TimeoutError, timeout_s: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {error.reason or error}"
    reason = error.strerror or f"timeout after {timeout_s:g} s"
    return f"{reason}; agents must reach the gateway's --work-port as well as its --hub port"
