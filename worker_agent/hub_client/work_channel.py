"""The agent's end of the work stream: orders from the gateway, reports to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from google.protobuf.message import DecodeError

from synergai.errors import InvalidInput, Unavailable
from synergai.protocol.work_messages import decode_orders

if TYPE_CHECKING:
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_messages import Orders, Reports
    from synergai.protocol.work_transport import WorkTransport


class WorkChannel:
    """An open work stream; orders arrive by callback.

    Args:
        transport: what carries it.
    """

    def __init__(self, transport: WorkTransport) -> None:
        self._transport = transport

    async def receive(self) -> NoReturn:
        """Wait for the end of the stream.

        Raises:
            SynergaiError: always; the reason why the stream ended.
        """
        await asyncio.shield(self._transport.closed)
        raise Unavailable("the gateway closed the connection")

    async def write(self, reports: Reports) -> None:
        """Send reports; block forever once the stream has ended."""
        self._transport.send_message(reports)
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


def read_orders(data: Buffer) -> Orders:
    """Decode a serialised ``WorkOrders``.

    Raises:
        InvalidInput: it cannot be parsed.
    """
    try:
        return decode_orders(data)
    except DecodeError:
        raise InvalidInput("the gateway sent data that is not a WorkOrders message") from None
