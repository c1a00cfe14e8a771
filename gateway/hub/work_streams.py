"""The agents' work streams: orders to workers, and their reports.

A worker is in the fleet while it has a work stream; a new one replaces the one before it.

Orders are collected, to send several of them in one message. A socket accepts messages at once, so
orders do not accumulate by themselves, and a message costs gateway, agent and engine host more than
a short query does.
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.fleet.worker import (
    ConnectedWorker,
    DropTensors,
    Order,
    ProbeLink,
    RunAssignment,
    SendInputs,
    SendTensors,
    StopAssignment,
)
from synergai.domain import WorkerId
from synergai.errors import SynergaiError, Unavailable
from synergai.runtime.send_queue import SendQueue
from synergai.runtime.tasks import TaskBag
from synergai.v1 import hub_pb2
from synergai.wire.converters import configuration_to_proto
from synergai.wire.work_messages import Orders, RelayedTensors, Reports, decode_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.report_intake import ReportIntake
    from gateway.hub.connections import AgentConnection, AgentConnections
    from synergai.core.pipeline import HeldTensors
    from synergai.runtime.clock import Clock
    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_transport import SentOver, WorkTransport

_log = logging.getLogger(__name__)

_ORDERS_LIMIT: Final = 4096
COLLECT_S: Final = 0.004
"""Longest time that orders are held back to be sent together, in seconds."""
CONCURRENT_S: Final = 0.02
"""Time for which further orders are expected after several assignments were in flight."""
LARGE_BYTES: Final = 64 << 10
"""Size of a request whose message costs little in comparison."""
_IDLE_TURNS: Final = 4
"""Turns of the event loop without a new order, after which the gateway counts as idle."""
_ORDER_BYTES: Final = 512
"""About the size of an order without its tensors."""
_configuration = lru_cache(maxsize=1024)(configuration_to_proto)
"""Messages must not be modified: assignments copy them."""


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
        self._relays = Relays(connections)

    async def close(self) -> None:
        """Wait until all streams have ended; closing their connections ends them."""
        await self._senders.wait()

    def serve(self, connection_id: str, transport: WorkTransport) -> None:
        connection, worker = self._connections.authenticate(connection_id)
        collector = OrderCollector(worker, self._clock)
        orders = OrderQueue(partial(self._send_at_once, collector, transport), transport.close)
        worker.orders.close(Unavailable("replaced by a newer work stream"))
        self._dispatcher.remove_worker(worker)
        worker.orders = orders
        worker.measure_link = partial(_measure_link, worker, transport)
        worker.measure_received = lambda: transport.received_bytes_per_s
        transport.listen(decode_reports, partial(self._on_reports, worker))
        transport.max_bytes = self._max_message_bytes
        transport.closed.add_done_callback(orders.close_with)
        self._senders.start(self._send_orders(connection, worker, orders, collector, transport))
        self._dispatcher.add_worker(worker)

    def _close(self, worker: ConnectedWorker, orders: SendQueue[Order]) -> None:
        orders.close()
        if worker.orders is orders:
            self._relays.left(worker)
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
                del batch  # which may hold many tensors until the next one
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
            assignment = _assignment(order, self._clock.now())
            transport.send_message(Orders([(assignment, order.requests)]))
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
        if reports.wanted or reports.relayed:
            self._relays.apply(worker, reports)
        if worker.orders.enough is not None:
            worker.orders.recheck()


class OrderQueue(SendQueue[Order]):
    """Orders to a worker; while none waits, `send_at_once` may send one, and returns whether."""

    def __init__(
        self, send_at_once: Callable[[Order], bool], on_error: Callable[[], object]
    ) -> None:
        super().__init__(_ORDERS_LIMIT, on_error=on_error)
        self._send_at_once = send_at_once

    def put(self, item: Order, on_written: Callable[[], object] | None = None) -> None:
        if not (self.is_awaited and self._send_at_once(item)):
            super().put(item, on_written)


class OrderCollector:
    """Holds the orders of one worker back while waiting costs nothing.

    An agent in another process works while orders are held back, and gets them before it runs out
    of work. One in this process works only while the event loop has nothing else to do.
    """

    def __init__(self, worker: ConnectedWorker, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._expects_more_until = -math.inf

    def holds_back(self) -> bool:
        """Return whether the next order waits for others.

        A worker that has had a single assignment at a time gets its next one at once.
        """
        now = self._clock.now()
        if len(self._worker.in_flight) > 1:
            # It may have answered all of them when the next request arrives, ahead of the others.
            self._expects_more_until = now + CONCURRENT_S
            return True
        return self._worker.local and now < self._expects_more_until

    async def collect(self, orders: SendQueue[Order], batch: list[Order]) -> list[Order]:
        """Return `batch` and the orders of the queue to send in the same message.

        They wait until they are half of the worker's assignments in flight, or as long as the
        gateway has further requests to dispatch if the agent is in its process. A slow worker gets
        them earlier, while it still computes. What takes longer than its message does not wait.
        """
        if not self.holds_back() or any(map(outweighs_message, batch)):
            return batch
        if self._worker.local:
            return batch + await orders.collect_until_idle(_IDLE_TURNS, COLLECT_S)
        in_flight, held = self._worker.in_flight, len(batch)
        return batch + await orders.collect_until(
            lambda count: 2 * (held + count) >= len(in_flight), COLLECT_S
        )


def _measure_link(worker: ConnectedWorker, transport: WorkTransport) -> SentOver | None:
    """Return what is known of the link to a worker: its end knows best how fast it is."""
    sent = transport.measure_link()
    if sent is None or not worker.sent_bytes_per_s:
        return sent
    return sent._replace(bytes_per_s=worker.sent_bytes_per_s)


def outweighs_message(order: Order) -> bool:
    """Return whether an order takes longer than its message.

    A range of queries does, and a job that continues behind a short request is due when the request
    ends. So does a large request, unless it can share a batch: the worker computes it while it
    receives the next one.
    """
    if not isinstance(order, RunAssignment):
        return False
    assignment = order.assignment
    return assignment.count > 1 or (
        assignment.batch_times is None
        and (order.pull is not None or sum(map(len, order.requests)) >= LARGE_BYTES)
    )


def pack_orders(orders: Iterable[Order], now: float, limit_bytes: int) -> Iterator[Orders]:
    """Convert orders into messages of about `limit_bytes`; a single larger order is sent alone.

    Inputs that follow an assignment are parted, as a worker computes the first ones while it
    receives the others.
    """
    assignments: list[tuple[hub_pb2.Assignment, Sequence[Buffer]]] = []
    stops: list[int] = []
    aborts: list[int] = []
    inputs: list[tuple[hub_pb2.Inputs, Sequence[Buffer]]] = []
    sends: list[str] = []
    relayed: list[RelayedTensors] = []
    drops: list[str] = []
    probes: list[hub_pb2.Pull] = []
    size = 0
    parts = (_parted(each) if isinstance(each, SendInputs) else (each,) for each in orders)
    for order in chain.from_iterable(parts):
        added = _size(order)
        most = LARGE_BYTES if isinstance(order, SendInputs) else limit_bytes
        if size and size + added > most:
            yield Orders(assignments, stops, inputs, aborts, sends, relayed, drops, probes)
            assignments, stops, inputs, aborts = [], [], [], []
            sends, relayed, drops, probes, size = [], [], [], [], 0
        size += added
        match order:
            case RunAssignment():
                assignments.append((_assignment(order, now), order.requests))
            case SendInputs(assignment_id, contents, suspects, pulls):
                header = hub_pb2.Inputs(
                    assignment_id=assignment_id,
                    suspects=suspects,
                    pulls=[_pull(held, query) for query, held in pulls],
                )
                inputs.append((header, contents))
            case StopAssignment(assignment_id, abort):
                (aborts if abort else stops).append(assignment_id)
            case SendTensors(token):
                sends.append(token)
            case DropTensors(token):
                drops.append(token)
            case RelayedTensors():
                relayed.append(order)
            case ProbeLink(held):
                probes.append(_pull(held))
    yield Orders(assignments, stops, inputs, aborts, sends, relayed, drops, probes)


def _parted(order: SendInputs) -> Iterator[SendInputs]:
    """Yield an order in parts of at least `LARGE_BYTES` of inputs."""
    inputs: list[bytes] = []
    size = 0
    for data in order.inputs:
        inputs.append(data)
        size += len(data)
        if size >= LARGE_BYTES:
            yield replace(order, inputs=inputs)
            inputs, size = [], 0
    if inputs:
        yield replace(order, inputs=inputs)


def _size(order: Order) -> int:
    match order:
        case RunAssignment(_, contents) | SendInputs(_, contents) | RelayedTensors(_, contents):
            return _ORDER_BYTES + sum(map(len, contents))
        case _:
            return _ORDER_BYTES


def _assignment(order: RunAssignment, now: float) -> hub_pb2.Assignment:
    assignment = order.assignment
    message = hub_pb2.Assignment()  # field by field, which takes two thirds of the time
    message.id = assignment.id
    message.job_id = assignment.job_id
    message.engine = assignment.engine
    message.configuration.CopyFrom(_configuration(assignment.configuration))
    message.first = assignment.first
    message.count = assignment.count
    message.inputs_follow = order.inputs_follow
    message.concurrent = assignment.concurrent
    message.holds_outputs = order.holds_outputs
    if order.pull is not None:
        message.pull.CopyFrom(_pull(order.pull))
    if assignment.batch_times is not None:
        message.batch_s.extend(assignment.batch_times.by_size)
        if assignment.compute_by < math.inf:
            message.budget_s = assignment.compute_by - now
    return message


def _pull(held: HeldTensors, query: int = 0) -> hub_pb2.Pull:
    return hub_pb2.Pull(
        query=query,
        token=held.token,
        worker_id=held.worker_id,
        address=held.address,
        certificate=held.certificate,
    )


MOST_WANTED: Final = 1024
"""Tensors that one worker waits for; more than it can have queries in flight.

It gives up after a while, which it does not tell: those that it asked for first are forgotten."""


class Relays:
    """Passes held tensors on to the workers that want them.

    The token alone says who may have them: only their holder, this gateway and the worker that was
    told to pull them know it.
    """

    def __init__(self, connections: AgentConnections) -> None:
        self._connections = connections
        # By the worker that wants them: their tokens, and who holds them.
        self._wanted: dict[ConnectedWorker, dict[str, WorkerId]] = {}

    def apply(self, worker: ConnectedWorker, reports: Reports) -> None:
        for wanted in reports.wanted:
            self._want(worker, wanted.token, WorkerId(wanted.worker_id))
        for tensors in reports.relayed:
            self._pass_on(worker.id, tensors)

    def left(self, worker: ConnectedWorker) -> None:
        """Tell those who wait for a worker that left that its tensors are lost."""
        self._wanted.pop(worker, None)
        for wanted in list(self._wanted.values()):
            for token in [token for token, holder in wanted.items() if holder == worker.id]:
                self._pass_on(worker.id, RelayedTensors(token, ()))

    def _want(self, worker: ConnectedWorker, token: str, holder_id: WorkerId) -> None:
        wanted = self._wanted.setdefault(worker, {})
        wanted.pop(token, None)
        wanted[token] = holder_id
        if len(wanted) > MOST_WANTED:
            del wanted[next(iter(wanted))]
        connection = self._connections.of_worker(holder_id)
        holder = None if connection is None else connection.worker
        # Half of the queue remains for orders: a worker may ask for what another does not hold.
        if holder is None or holder.orders.closed or holder.orders.is_half_full:
            self._pass_on(holder_id, RelayedTensors(token, ()))
        else:
            holder.orders.put(SendTensors(token))

    def _pass_on(self, holder_id: WorkerId, tensors: RelayedTensors) -> None:
        for worker, wanted in self._wanted.items():
            if wanted.get(tensors.token) == holder_id:
                del wanted[tensors.token]
                worker.orders.put(tensors)
