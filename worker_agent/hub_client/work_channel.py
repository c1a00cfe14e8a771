"""The agent's end of the work stream: over a work socket, or else over a gRPC call.

The line is the quicker one by far, but needs a port of its own. Where only the hub's is let
through, the call carries the same messages.
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
    """What carries orders and reports."""

    async def receive(self) -> NoReturn:
        """Have orders taken as they come.

        Raises:
            SynergaiError: always, in the end; it says how the stream broke.
        """

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``; never returns once the stream has ended."""

    async def finish(self) -> None:
        """Send nothing more, and return once the gateway has read everything."""

    def close(self) -> None:
        """End the stream now."""


class GrpcWorkChannel:
    """The work stream as a gRPC call.

    Args:
        channel: to the gateway's hub.
        session: the registration that it belongs to.
        take: called with all orders.
    """

    def __init__(
        self, channel: grpc.aio.Channel, session: str, take: Callable[[Orders], None]
    ) -> None:
        method: Any = channel.stream_stream(
            "/synergai.v1.Hub/Work",
            response_deserializer=rpc.safe_deserializer(decode_orders, hub_pb2.WorkOrders),
        )
        self._call = method(metadata=((CONNECTION_METADATA, session),))
        self._take = take

    async def receive(self) -> NoReturn:
        """Have orders taken as they come."""
        while True:
            self._take(await read(self._call))

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``."""
        await write(self._call, data)

    async def finish(self) -> None:
        """Return once the gateway has ended its half, which it does when it has read ours."""
        await self._call.done_writing()
        await self._call.code()

    def close(self) -> None:
        """End the call."""
        self._call.cancel()


class SocketWorkChannel:
    """The work stream as a work socket. Made by `open_socket_channel`."""

    def __init__(self, socket: WorkSocket) -> None:
        self._socket = socket

    async def receive(self) -> NoReturn:
        """Orders come by callback; wait for the end."""
        await asyncio.shield(self._socket.closed)
        raise Unavailable("it ended the connection")

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``."""
        self._socket.send((data,))
        await self._socket.drain()
        if self._socket.closed.done():
            await asyncio.Event().wait()  # who receives is about to say why

    async def finish(self) -> None:
        """Return once the gateway has ended its half, which it does when it has read ours."""
        self._socket.write_eof()
        await asyncio.shield(self._socket.closed)

    def close(self) -> None:
        """End the line."""
        self._socket.close()


async def open_socket_channel(
    host: str,
    port: int,
    session: str,
    take: Callable[[Orders], None],
    *,
    max_message_bytes: int,
    timeout_s: float,
) -> SocketWorkChannel | None:
    """Open a work socket; None if nobody can be reached there.

    Args:
        host: the gateway's.
        port: where it listens for work sockets.
        session: the registration that the line belongs to.
        take: called with all orders.
        max_message_bytes: the largest message that may come.
        timeout_s: how long connecting may take.
    """

    def take_message(data: Buffer) -> None:
        try:
            orders = decode_orders(data)
        except DecodeError:
            raise InvalidInput("the gateway sent what is not a WorkOrders") from None
        take(orders)

    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, socket = await loop.create_connection(
                lambda: WorkSocket(take_message, max_message_bytes), host, port
            )
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        _log.info("no work socket to %s:%d (%s): work goes over gRPC", host, port, why)
        return None
    socket.send((session.encode(),))
    return SocketWorkChannel(socket)


async def read(call: Any) -> Any:
    """The next message of a call.

    Raises:
        Unavailable: there is none.
        InvalidInput: it is not one of its type.
    """
    message = await call.read()
    if message is grpc.aio.EOF:
        raise Unavailable("it ended the connection")
    if isinstance(message, rpc.Malformed):
        raise message.error()
    return message


async def write(call: Any, data: bytes) -> None:
    """Send a message on a call; never returns once the call has ended."""
    try:
        await call.write(data)
    except asyncio.InvalidStateError:
        # The stream is over, and its reader is about to say why.
        await asyncio.Event().wait()
