"""The agents' work streams: orders to workers, and their reports.

A worker is in the fleet while it has a work stream; a new one replaces the one before it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from gateway.fleet.agent_validation import ProtocolViolation
from gateway.hub.orders import pack_orders
from synergai.errors import SynergaiError, Unavailable
from synergai.protocol.work_messages import decode_reports
from synergai.runtime.send_queue import SendQueue

if TYPE_CHECKING:
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.report_intake import ReportIntake
    from gateway.fleet.worker import ConnectedWorker, Order
    from gateway.hub.connections import AgentConnection, AgentConnections
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_transport import WorkTransport
    from synergai.runtime.clock import Clock

_ORDERS_LIMIT: Final = 4096
_COLLECT_S: Final = 0.004
"""Longest time that orders are held back to be sent together, in seconds."""
_IDLE_TURNS: Final = 32
"""Turns of the event loop without a new order after which the gateway counts as idle; a turn takes
about a microsecond."""


class WorkStreams:
    """Server of the work streams.

    Args:
        connections: the open agent connections.
        dispatcher: receives the workers with an open work stream.
        intake: receives their reports.
        clock: source of receive times and remaining budgets.
        max_message_bytes: maximum size of a message, in both directions.
    """

    def __init__(
        self,
        connections: AgentConnections,
        dispatcher: Dispatcher,
        intake: ReportIntake,
        clock: Clock,
        *,
        max_message_bytes: int,
    ) -> None:
        self._connections = connections
        self._dispatcher = dispatcher
        self._intake = intake
        self._clock = clock
        self._max_message_bytes = max_message_bytes
        self._batch_bytes = max_message_bytes // 2
        self._senders: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait until all streams have ended; closing their connections ends them."""
        if self._senders:
            await asyncio.wait(self._senders)

    def serve(self, connection_id: str, transport: WorkTransport) -> None:
        """Serve the work stream of the connection with this id.

        Raises:
            Unavailable: the connection id is unknown.
        """
        connection, worker, orders = self._open(connection_id)
        transport.on_message = partial(self._on_message, worker)
        transport.max_bytes = self._max_message_bytes
        transport.closed.add_done_callback(orders.close_with)
        orders.on_error = transport.close
        sender = asyncio.create_task(self._send_orders(connection, worker, orders, transport))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)
        self._dispatcher.add_worker(worker)

    def _open(
        self, connection_id: str
    ) -> tuple[AgentConnection, ConnectedWorker, SendQueue[Order]]:
        """Close the worker's current stream, if any, and give it a new send queue."""
        connection, worker = self._connections.authenticate(connection_id)
        worker.orders.close(Unavailable("replaced by a newer work stream"))
        self._dispatcher.remove_worker(worker)
        worker.orders = SendQueue(_ORDERS_LIMIT)
        return connection, worker, worker.orders

    def _close(self, worker: ConnectedWorker, orders: SendQueue[Order]) -> None:
        orders.close()
        if worker.orders is orders:
            self._dispatcher.remove_worker(worker)

    # --- orders -----------------------------------------------------------------------------

    async def _send_orders(
        self,
        connection: AgentConnection,
        worker: ConnectedWorker,
        orders: SendQueue[Order],
        transport: WorkTransport,
    ) -> None:
        try:
            while batch := await orders.get_batch():
                if len(worker.in_flight) > 1:
                    batch += await _collect(worker, orders, len(batch))
                for parts in pack_orders(batch, self._clock.now(), self._batch_bytes):
                    transport.send(parts)
                await transport.drain()
        except SynergaiError as error:
            self._connections.refuse(connection, error)
        finally:
            transport.close()
            self._close(worker, orders)

    # --- reports ----------------------------------------------------------------------------

    def _on_message(self, worker: ConnectedWorker, data: Buffer) -> None:
        try:
            reports = decode_reports(data)
        except DecodeError:
            raise ProtocolViolation("the message is not a valid synergai.v1.WorkReports") from None
        worker.last_seen_at = self._clock.now()
        self._intake.apply(worker, reports)
        worker.orders.recheck()


async def _collect(worker: ConnectedWorker, orders: SendQueue[Order], held: int) -> list[Order]:
    """Collect further orders to send in one message with the `held` ones.

    A socket accepts messages at once, so orders do not accumulate by themselves, and a message
    costs gateway, agent and engine host more than a short query does. Orders therefore wait while
    waiting costs nothing: until half of the worker's other assignments in flight have ended, and
    then as long as the gateway has further requests to dispatch. A slow worker gets them earlier,
    while it still computes.
    """
    end = asyncio.get_running_loop().time() + _COLLECT_S
    busy_with = len(worker.in_flight) - held
    more = await orders.collect_until(
        lambda count: 2 * (len(worker.in_flight) - held - count) <= busy_with, _COLLECT_S
    )
    timeout_s = end - asyncio.get_running_loop().time()
    return more + await orders.collect_until_idle(_IDLE_TURNS, timeout_s)
