"""The agents' work streams: orders to them, and what they report.

A work stream is a work socket or else a gRPC call. A worker is in the fleet for as long as it has
one; a newer one takes over from the one before it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from gateway.fleet.agent_validation import ProtocolViolation
from gateway.hub.orders import pack
from gateway.send_queue import Outbox
from synergai.errors import SynergaiError, Unavailable
from synergai.protocol.hub import CONNECTION_METADATA
from synergai.protocol.work_messages import decode_reports

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from gateway.clock import Clock
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.worker import ConnectedWorker, Order
    from gateway.hub.connections import AgentLink, Links
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.rpc import Context
    from synergai.protocol.work_messages import Reports
    from synergai.protocol.work_socket import WorkSocket

_ORDERS_LIMIT: Final = 4096
_GATHER_TURNS: Final = 32
"""A message costs far more than what is in it. To a worker that has something to do already,
orders are therefore sent only once so many turns of the loop in a row have brought no others.
An idle turn takes about a microsecond, so that this costs little but under load, when a turn
brings orders, and then saves a quarter of the CPU time of a request."""
_GATHER_S: Final = 0.004
"""How long orders may be kept back by that."""


class WorkStreams:
    """Serves work streams.

    Args:
        links: whose session is whose.
        dispatcher: is told which workers can be given work, and what they report.
        clock: what signs of life and budgets are measured by.
        max_message_bytes: the largest message that an agent may send or is sent.
    """

    def __init__(
        self, links: Links, dispatcher: Dispatcher, clock: Clock, *, max_message_bytes: int
    ) -> None:
        self._links = links
        self._dispatcher = dispatcher
        self._clock = clock
        self._max_message_bytes = max_message_bytes
        self._batch_bytes = max_message_bytes // 2
        self._senders: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Return once all work sockets have ended, which their links' end brings about."""
        if self._senders:
            await asyncio.wait(self._senders)

    async def serve_call(
        self, requests: AsyncIterator[Reports], context: Context
    ) -> AsyncGenerator[bytes, None]:
        """Serve a work stream on a call."""
        metadata = dict(context.invocation_metadata() or ())
        link, worker, orders = self._take_over(str(metadata.get(CONNECTION_METADATA, "")))
        reader = asyncio.create_task(self._read_reports(worker, requests))
        reader.add_done_callback(orders.follow)
        self._dispatcher.joined(worker)
        try:
            while batch := await orders.take():
                if len(worker.outstanding) > 1:
                    batch += await orders.gather(_GATHER_TURNS, _GATHER_S)
                for parts in pack(batch, self._clock.now(), self._batch_bytes):
                    yield b"".join(parts)
        except SynergaiError as error:
            self._links.refuse(link, error)
            raise
        finally:
            reader.cancel()
            self._ended(worker, orders)
            await asyncio.wait([reader])

    def serve_socket(self, session: str, socket: WorkSocket) -> None:
        """Serve a work stream on a work socket, which has shown this session.

        Raises:
            Unavailable: there is no such session.
        """
        link, worker, orders = self._take_over(session)
        socket.on_message = partial(self._take_message, worker)
        socket.max_bytes = self._max_message_bytes
        socket.closed.add_done_callback(orders.follow)
        orders.when_broken = socket.close
        sender = asyncio.create_task(self._send_orders(link, worker, orders, socket))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)
        self._dispatcher.joined(worker)

    def _take_over(self, session: str) -> tuple[AgentLink, ConnectedWorker, Outbox[Order]]:
        """Who a work stream with this session is of, and what it has to send from now on."""
        link, worker = self._links.of_session(session)
        worker.orders.close(Unavailable("another work stream has taken over"))
        self._dispatcher.left(worker)
        worker.orders = Outbox(_ORDERS_LIMIT)
        return link, worker, worker.orders

    def _ended(self, worker: ConnectedWorker, orders: Outbox[Order]) -> None:
        orders.close()
        if worker.orders is orders:
            self._dispatcher.left(worker)

    # --- orders -------------------------------------------------------------------------------

    async def _send_orders(
        self, link: AgentLink, worker: ConnectedWorker, orders: Outbox[Order], socket: WorkSocket
    ) -> None:
        try:
            while batch := await orders.take():
                batch += await _more(worker, orders, len(batch))
                for parts in pack(batch, self._clock.now(), self._batch_bytes):
                    socket.send(parts)
                await socket.drain()
        except SynergaiError as error:
            self._links.refuse(link, error)
        finally:
            socket.close()
            self._ended(worker, orders)

    # --- reports ------------------------------------------------------------------------------

    async def _read_reports(
        self, worker: ConnectedWorker, requests: AsyncIterator[Reports]
    ) -> None:
        async for reports in requests:
            self._take_reports(worker, reports)

    def _take_message(self, worker: ConnectedWorker, data: Buffer) -> None:
        try:
            reports = decode_reports(data)
        except DecodeError:
            raise ProtocolViolation("the message is not a valid synergai.v1.WorkReports") from None
        self._take_reports(worker, reports)

    def _take_reports(self, worker: ConnectedWorker, reports: Reports) -> None:
        worker.heard_at = self._clock.now()
        for started in reports.started:
            self._dispatcher.started(worker, started)
        for progress, responses in reports.progress:
            self._dispatcher.progress(worker, progress, responses)
        for ended, responses in reports.ended:
            self._dispatcher.ended(worker, ended, responses)
        worker.orders.nudge()


async def _more(worker: ConnectedWorker, orders: Outbox[Order], held: int) -> list[Order]:
    """What had better go to a busy worker in one message with the orders that are held.

    A work socket takes a message at once, so that nothing gathers by itself; to wake agent and
    engine host for every single query costs them more than the query. Orders to a worker that
    has something to do therefore wait until half of that is done. A slow worker gets them
    earlier, while it still computes.
    """
    has = len(worker.outstanding) - held
    if has < 1:
        return []
    return await orders.gather_until(
        lambda more: 2 * (len(worker.outstanding) - held - more) <= has, _GATHER_S
    )
