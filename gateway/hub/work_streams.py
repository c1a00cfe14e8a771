"""The agents' work streams: orders to workers, and their reports.

A worker is in the fleet while it has a work stream; a new one replaces the one before it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from gateway.fleet.agent_validation import ProtocolViolation
from gateway.fleet.worker import RunAssignment
from gateway.hub.order_collector import OrderCollector, outweighs_message
from gateway.hub.orders import pack_orders
from synergai.errors import SynergaiError, Unavailable
from synergai.protocol.work_messages import decode_reports
from synergai.runtime.send_queue import SendQueue
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.report_intake import ReportIntake
    from gateway.fleet.worker import ConnectedWorker, Order
    from gateway.hub.connections import AgentConnection, AgentConnections
    from synergai.protocol.request_codec import Buffer
    from synergai.protocol.work_messages import Reports
    from synergai.protocol.work_transport import WorkTransport
    from synergai.runtime.clock import Clock

_log = logging.getLogger(__name__)

_ORDERS_LIMIT: Final = 4096


class WorkStreams:
    """Server of the work streams."""

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
        self._senders = TaskBag()

    async def close(self) -> None:
        """Wait until all streams have ended; closing their connections ends them."""
        await self._senders.wait()

    def serve(self, connection_id: str, transport: WorkTransport) -> None:
        """Serve the work stream of the connection with this id."""
        connection, worker = self._connections.authenticate(connection_id)
        collector = OrderCollector(worker, self._clock)
        orders: SendQueue[Order] = SendQueue(
            _ORDERS_LIMIT,
            on_error=transport.close,
            send_at_once=partial(self._send_at_once, collector, transport),
        )
        worker.orders.close(Unavailable("replaced by a newer work stream"))
        self._dispatcher.remove_worker(worker)
        worker.orders = orders
        transport.listen(_decode, partial(self._on_reports, worker))
        transport.max_bytes = self._max_message_bytes
        transport.closed.add_done_callback(orders.close_with)
        self._senders.start(self._send_orders(connection, worker, orders, collector, transport))
        self._dispatcher.add_worker(worker)

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
        collector: OrderCollector,
        transport: WorkTransport,
    ) -> None:
        try:
            while batch := await orders.get_batch():
                self._send(await collector.collect(orders, batch), transport)
                await transport.drain()
        except SynergaiError as error:
            self._connections.refuse(connection, error)
        finally:
            transport.close()
            self._close(worker, orders)

    def _send_at_once(
        self, collector: OrderCollector, transport: WorkTransport, order: Order
    ) -> bool:
        """Send an assignment that need not wait for further orders; return whether it was sent.

        One that can share a batch waits for those of the same turn of the event loop.
        """
        if not isinstance(order, RunAssignment) or order.assignment.batch_times is not None:
            return False
        if collector.holds_back() and not (order.assignment.concurrent or outweighs_message(order)):
            return False
        try:
            self._send([order], transport)
        except Exception:  # noqa: BLE001 - a bug must not end what the dispatcher does for others
            _log.exception("cannot send to worker %s", order.assignment.worker_id)
            transport.close()
        return True

    def _send(self, orders: Sequence[Order], transport: WorkTransport) -> None:
        for message in pack_orders(orders, self._clock.now(), self._batch_bytes):
            transport.send_message(message)

    # --- reports ----------------------------------------------------------------------------

    def _on_reports(self, worker: ConnectedWorker, reports: Reports) -> None:
        worker.last_seen_at = self._clock.now()
        self._intake.apply(worker, reports)
        worker.orders.recheck()


def _decode(data: Buffer) -> Reports:
    try:
        return decode_reports(data)
    except DecodeError:
        raise ProtocolViolation("the message is not a valid synergai.v1.WorkReports") from None
