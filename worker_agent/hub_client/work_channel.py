"""The agent's end of the work stream: orders from the gateway, reports to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.work_messages import decode_orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_messages import Orders
    from synergai.protocol.work_transport import WorkTransport


class WorkChannel:
    """An open work stream.

    Args:
        transport: what carries it; received messages are passed to `decoding`.
    """

    def __init__(self, transport: WorkTransport) -> None:
        self._transport = transport

    async def receive(self) -> NoReturn:
        """Wait for the end of the stream; orders arrive by callback.

        Raises:
            SynergaiError: always; the reason why the stream ended.
        """
        await asyncio.shield(self._transport.closed)
        raise Unavailable("the gateway closed the connection")

    async def write(self, data: bytes) -> None:
        """Send serialised ``WorkReports``; block forever once the stream has ended."""
        self._transport.send((data,))
        await self._transport.drain()
        if self._transport.closed.done():
            await asyncio.Event().wait()  # `receive` raises the reason

    async def finish(self) -> None:
        """Send nothing more, and wait until the gateway has read everything."""
        self._transport.finish()
        await asyncio.wait([self._transport.closed])

    def close(self) -> None:
        """Close the stream immediately."""
        self._transport.close()


def decoding(on_orders: Callable[[Orders], None]) -> Callable[[Buffer], None]:
    """Return a receiver of messages that passes their orders to `on_orders`.

    Raises (on receiving):
        InvalidInput: the message cannot be parsed.
    """

    def on_message(data: Buffer) -> None:
        try:
            orders = decode_orders(data)
        except DecodeError:
            raise InvalidInput("the gateway sent data that is not a WorkOrders message") from None
        on_orders(orders)

    return on_message
