"""The agent's end of the work stream: a work socket to the gateway."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol import rpc
from synergai.protocol.work_messages import decode_orders
from synergai.protocol.work_socket import WorkSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_messages import Orders


class WorkChannel:
    """Transport of orders and reports. Created by `open_work_channel`."""

    def __init__(self, socket: WorkSocket) -> None:
        self._socket = socket

    async def receive(self) -> NoReturn:
        """Wait for the end of the stream; orders arrive by callback.

        Raises:
            SynergaiError: always; the reason why the stream ended.
        """
        await asyncio.shield(self._socket.closed)
        raise Unavailable("the gateway closed the connection")

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``; block forever once the stream has ended."""
        self._socket.send((data,))
        await self._socket.drain()
        if self._socket.closed.done():
            await asyncio.Event().wait()  # `receive` raises the reason

    async def finish(self) -> None:
        """Send nothing more, and wait until the gateway has read everything."""
        self._socket.finish()
        await asyncio.wait([self._socket.closed])

    def close(self) -> None:
        """Close the stream immediately."""
        self._socket.close()


async def open_work_channel(
    host: str,
    port: int,
    connection_id: str,
    on_orders: Callable[[Orders], None],
    *,
    tls: ssl.SSLContext | None,
    max_message_bytes: int,
    timeout_s: float,
) -> WorkChannel:
    """Open a work socket.

    Args:
        host: host of the gateway.
        port: port of its work sockets.
        connection_id: id of the registration.
        on_orders: called with each batch of orders.
        tls: context to verify the gateway and to present a certificate; None for plaintext.
        max_message_bytes: size limit of received messages.
        timeout_s: timeout of connecting, TLS handshake included, in seconds.

    Raises:
        Unavailable: the port cannot be reached, or the TLS handshake failed.
    """

    def on_message(data: Buffer) -> None:
        try:
            orders = decode_orders(data)
        except DecodeError:
            raise InvalidInput("the gateway sent data that is not a WorkOrders message") from None
        on_orders(orders)

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
    return WorkChannel(socket)


def _reason(error: OSError | TimeoutError, timeout_s: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {error.reason or error}"
    reason = error.strerror or f"timeout after {timeout_s:g} s"
    return f"{reason}; agents must reach the gateway's --work-port as well as its --hub port"


async def read(call: Any) -> Any:
    """Return the next message of a call.

    Raises:
        Unavailable: the peer closed the stream.
        InvalidInput: the message cannot be parsed.
    """
    message = await call.read()
    if message is grpc.aio.EOF:
        raise Unavailable("the gateway closed the connection")
    if isinstance(message, rpc.Malformed):
        raise message.error()
    return message


async def write(call: Any, data: bytes) -> None:
    """Send a message on a call; block forever once the call has ended."""
    try:
        await call.write(data)
    except asyncio.InvalidStateError:
        # The call has ended; its reader raises the reason.
        await asyncio.Event().wait()
