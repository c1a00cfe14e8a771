"""The agent's end of the work stream: a work socket, or a gRPC call as the fallback.

The socket is much faster but needs its own port. Where only the hub's port is open, the gRPC call
carries the same messages.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol import rpc
from synergai.protocol.hub import CONNECTION_METADATA
from synergai.protocol.work_messages import decode_orders
from synergai.protocol.work_socket import WorkSocket
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_messages import Orders

_log = logging.getLogger(__name__)


class WorkChannel(Protocol):
    """Transport of orders and reports."""

    async def receive(self) -> NoReturn:
        """Receive orders until the stream ends.

        Raises:
            SynergaiError: always; the reason why the stream ended.
        """

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``; block forever once the stream has ended."""

    async def finish(self) -> None:
        """Half-close the stream and wait until the gateway has read everything."""

    def close(self) -> None:
        """Close the stream immediately."""


class GrpcWorkChannel:
    """The work stream as a gRPC call.

    Args:
        channel: gRPC channel to the hub.
        session: id of the registration.
        on_orders: called with each batch of orders.
    """

    def __init__(
        self, channel: grpc.aio.Channel, session: str, on_orders: Callable[[Orders], None]
    ) -> None:
        method: Any = channel.stream_stream(
            "/synergai.v1.Hub/Work",
            response_deserializer=rpc.safe_deserializer(decode_orders, hub_pb2.WorkOrders),
        )
        self._call = method(metadata=((CONNECTION_METADATA, session),))
        self._on_orders = on_orders

    async def receive(self) -> NoReturn:
        """Receive orders until the stream ends."""
        while True:
            self._on_orders(await read(self._call))

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``."""
        await write(self._call, data)

    async def finish(self) -> None:
        """Half-close, then wait for the gateway's half, which it closes after reading ours."""
        await self._call.done_writing()
        await self._call.code()

    def close(self) -> None:
        """Cancel the call."""
        self._call.cancel()


class SocketWorkChannel:
    """The work stream as a work socket. Created by `open_socket_channel`."""

    def __init__(self, socket: WorkSocket) -> None:
        self._socket = socket

    async def receive(self) -> NoReturn:
        """Wait for the end of the stream; orders arrive by callback."""
        await asyncio.shield(self._socket.closed)
        raise Unavailable("the gateway closed the connection")

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``."""
        self._socket.send((data,))
        await self._socket.drain()
        if self._socket.closed.done():
            await asyncio.Event().wait()  # `receive` raises the reason

    async def finish(self) -> None:
        """Half-close, then wait for the gateway's half, which it closes after reading ours."""
        self._socket.write_eof()
        await asyncio.shield(self._socket.closed)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


async def open_socket_channel(
    host: str,
    port: int,
    session: str,
    on_orders: Callable[[Orders], None],
    *,
    max_message_bytes: int,
    timeout_s: float,
) -> SocketWorkChannel | None:
    """Open a work socket; return None if the gateway cannot be reached there.

    Args:
        host: host of the gateway.
        port: port of its work sockets.
        session: id of the registration.
        on_orders: called with each batch of orders.
        max_message_bytes: size limit of received messages.
        timeout_s: connect timeout in seconds.
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
                lambda: WorkSocket(on_message, max_message_bytes), host, port
            )
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "timeout"
        _log.info("cannot open a work socket to %s:%d (%s); using gRPC", host, port, reason)
        return None
    socket.send((session.encode(),))
    return SocketWorkChannel(socket)


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
