"""Work streams: orders that are packed and collected, and tensors that are relayed."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from gateway.fleet.worker import (
    ConnectedWorker,
    Order,
    RunAssignment,
    SendInputs,
    SendTensors,
    StopAssignment,
)
from gateway.hub import work_streams
from gateway.hub.connections import AgentConnection, AgentConnections
from gateway.hub.work_streams import (
    CONCURRENT_S,
    LARGE_BYTES,
    MOST_WANTED,
    OrderCollector,
    Relays,
    WorkStreams,
    pack_orders,
)
from gateway.monitoring.metrics import Metrics
from synergai.domain import AssignmentId, BatchTimes
from synergai.runtime.send_queue import SendQueue
from synergai.v1.hub_pb2 import Wanted
from synergai.wire.work_messages import Orders, RelayedTensors, Reports
from tests.cores import new_assignment
from tests.unit.gateway.conftest import ECHO, FakeClock, make_worker
from tests.waiting import turns


class FakeTransport:
    """Records the ids of the assignments and stops in each message."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent: list[list[int]] = []

    def listen(self, _decode: object, _on_message: object) -> None:
        """Nothing is received."""

    def send_message(self, orders: Orders) -> None:
        self.sent.append([*(order.id for order, _ in orders.assignments), *orders.stops])

    def measure_link(self) -> None:
        """Nothing is known of the link."""

    async def drain(self) -> None:
        """Return at once."""

    def close(self, _error: object = None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Streaming:
    """A work stream whose sender waits for orders."""

    def __init__(self) -> None:
        self.worker = make_worker()
        self.transport = FakeTransport()
        connections = SimpleNamespace(authenticate=lambda _: (None, self.worker))
        dispatcher = SimpleNamespace(add_worker=lambda _: None, remove_worker=lambda _: None)
        clock = SimpleNamespace(now=lambda: 100.0)
        streams = WorkStreams(
            cast("Any", connections),
            cast("Any", dispatcher),
            cast("Any", None),
            cast("Any", clock),
            max_message_bytes=1 << 20,
        )
        streams.serve("connection", cast("Any", self.transport))

    def order(
        self,
        number: int,
        batch_times: BatchTimes | None = None,
        *,
        concurrent: bool = False,
        size: int = 1,
    ) -> Order:
        """Return an order to run an assignment, which is in flight from now on."""
        assignment = new_assignment(
            number, ECHO, self.worker.id, batch_times=batch_times, concurrent=concurrent
        )
        self.worker.in_flight[assignment.id] = cast("Any", None)
        return RunAssignment(assignment, (bytes(size),))


@pytest.fixture
async def setup() -> Streaming:
    setup = Streaming()
    await asyncio.sleep(0)
    return setup


async def test_assignments_of_a_busy_worker_are_collected(setup: Streaming) -> None:
    for number in (1, 2, 3):
        setup.worker.orders.put(setup.order(number))
    assert setup.transport.sent == [[1]]
    del setup.worker.in_flight[AssignmentId(1)]
    for _ in range(100):
        await asyncio.sleep(0)
        setup.worker.orders.recheck()
    assert setup.transport.sent == [[1], [2, 3]]


async def test_a_large_request_is_sent_at_once(setup: Streaming) -> None:
    for number in (1, 2, 3):
        setup.worker.orders.put(setup.order(number, size=LARGE_BYTES))
    assert setup.transport.sent == [[1], [2], [3]]


async def test_orders_that_concern_an_assignment_follow_it(setup: Streaming) -> None:
    setup.worker.orders.put(setup.order(1))
    setup.worker.orders.put(StopAssignment(AssignmentId(1)))
    await turns()
    assert setup.transport.sent == [[1], [1]]


async def test_failure_to_send_ends_the_stream_and_not_what_the_dispatcher_does(
    setup: Streaming, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup.transport, "send_message", Mock(side_effect=KeyError("a bug")))
    setup.worker.orders.put(setup.order(1))
    assert "cannot send to worker" in caplog.text
    await turns()
    assert setup.worker.orders.closed


def test_large_inputs_are_sent_one_by_one_so_that_a_worker_begins_with_the_first() -> None:
    large, small = bytes(LARGE_BYTES), bytes(LARGE_BYTES // 4)
    run = RunAssignment(new_assignment(1, ECHO, "worker"), (), inputs_follow=True)
    follow = SendInputs(run.assignment.id, [large, large, *(small,) * 6], suspects=[1, 7])
    messages = list(pack_orders([run, follow], 0.0, 1 << 30))
    sent = [[len(each) for _, inputs in message.inputs for each in inputs] for message in messages]
    assert sent == [[], [len(large)], [len(large)], [len(small)] * 4, [len(small)] * 2]
    assert all(list(header.suspects) == [1, 7] for each in messages for header, _ in each.inputs)


def test_small_inputs_are_sent_together() -> None:
    follow = [SendInputs(AssignmentId(number), [bytes(100)] * 3) for number in range(9)]
    assert len(list(pack_orders(follow, 0.0, 1 << 30))) == 1


# --- orders are collected while waiting costs nothing -------------------------------------------

AN_HOUR_S = 3600.0


class Collecting:
    """A worker whose orders are collected."""

    def __init__(self, *, local: bool) -> None:
        self.clock = FakeClock()
        self.worker: ConnectedWorker = make_worker()
        self.worker.local = local
        self.collector = OrderCollector(self.worker, self.clock)

    async def collect(self, batch: list[Order]) -> list[Order]:
        return await self.collector.collect(self.worker.orders, batch)

    def start(self, number: int) -> Order:
        """Return an order whose assignment is in flight from now on."""
        self.worker.in_flight[AssignmentId(number)] = cast("Any", None)
        return StopAssignment(AssignmentId(number))

    def end(self, number: int) -> None:
        del self.worker.in_flight[AssignmentId(number)]
        self.worker.orders.recheck()

    async def put_after_turns(self, order: Order) -> None:
        await turns(2)
        self.worker.orders.put(order)


@pytest.fixture(autouse=True)
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_streams, "COLLECT_S", AN_HOUR_S)


async def test_orders_wait_until_they_are_half_of_the_assignments_in_flight() -> None:
    setup = Collecting(local=False)
    for number in (1, 2, 3, 4):
        setup.start(number)
    first = setup.start(5)
    collecting = asyncio.create_task(setup.collect([first]))
    await turns(100)
    assert not collecting.done()
    second = setup.start(6)
    setup.worker.orders.put(second)
    await turns(100)
    assert not collecting.done()
    setup.end(1)
    await turns(100)
    assert not collecting.done()
    setup.end(2)
    assert await collecting == [first, second]


async def test_orders_to_an_agent_in_this_process_wait_until_the_loop_is_idle() -> None:
    setup = Collecting(local=True)
    setup.start(1)
    first = setup.start(2)
    collecting = asyncio.create_task(setup.collect([first]))
    later = []
    for number in (3, 4, 5):
        await turns(3)
        later.append(setup.start(number))
        setup.worker.orders.put(later[-1])
    await turns(8)
    assert collecting.done()
    assert await collecting == [first, *later]


@pytest.mark.parametrize(
    ("local", "later_s", "waits"),
    [(False, 0.0, False), (True, 0.5 * CONCURRENT_S, True), (True, CONCURRENT_S, False)],
)
async def test_first_order_waits_only_in_this_process_if_several_were_in_flight_lately(
    *, local: bool, later_s: float, waits: bool
) -> None:
    setup = Collecting(local=local)
    await setup.collect([setup.start(1), setup.start(2)])
    for number in (1, 2):
        setup.end(number)
    setup.clock.time += later_s
    first, later = setup.start(3), StopAssignment(AssignmentId(4))
    putting = asyncio.create_task(setup.put_after_turns(later))
    assert await setup.collect([first]) == ([first, later] if waits else [first])
    await putting


# --- tensors are relayed between workers --------------------------------------------------------


class Fleet:
    """Workers `holder`, `wants` and `other`, whose orders are read by the test."""

    def __init__(self) -> None:
        self.connections = AgentConnections(Metrics())
        self.relays = Relays(self.connections)
        self.workers = {name: self._worker(name) for name in ("holder", "wants", "other")}

    def _worker(self, name: str) -> ConnectedWorker:
        worker = make_worker(name)
        worker.orders = SendQueue[Order](MOST_WANTED * 4)
        self.connections.register(AgentConnection(), worker)
        return worker

    def want(self, token: str, holder: str = "holder") -> None:
        wanted = Wanted(token=token, worker_id=holder)
        self.relays.apply(self.workers["wants"], Reports(wanted=[wanted]))

    def relay(self, name: str, token: str, *contents: bytes) -> None:
        self.relays.apply(self.workers[name], Reports(relayed=[RelayedTensors(token, contents)]))

    def orders(self, name: str) -> list[Order]:
        return self.workers[name].orders.get_batch_nowait()


def test_tensors_pass_only_from_their_holder_to_the_worker_that_wants_them() -> None:
    fleet = Fleet()
    fleet.want("token")
    assert fleet.orders("holder") == [SendTensors("token")]
    fleet.relay("other", "token", b"false")
    assert not fleet.orders("wants")
    fleet.relay("holder", "token", b"tensors")
    assert fleet.orders("wants") == [RelayedTensors("token", (b"tensors",))]
    fleet.relay("holder", "token", b"tensors")
    assert not fleet.orders("wants"), "they are wanted no more"


def test_tensors_of_a_worker_that_leaves_or_is_not_connected_are_lost_at_once() -> None:
    fleet = Fleet()
    fleet.want("token")
    fleet.relays.left(fleet.workers["holder"])
    fleet.want("other", "unknown")
    lost = [RelayedTensors(token, ()) for token in ("token", "other")]
    assert fleet.orders("wants") == lost


def test_worker_that_wants_many_tensors_ends_no_other_work_stream() -> None:
    fleet = Fleet()
    for number in range(5 * MOST_WANTED):
        fleet.want(f"token-{number}")
    holder = fleet.workers["holder"].orders
    assert not holder.closed
    assert len(fleet.orders("holder")) == 2 * MOST_WANTED
    fleet.want("later")
    assert fleet.orders("holder") == [SendTensors("later")]


def test_tensors_that_were_wanted_longest_are_forgotten_first() -> None:
    fleet = Fleet()
    for number in range(MOST_WANTED + 1):
        fleet.want(f"token-{number}")
    for number in (0, 1, MOST_WANTED):
        fleet.relay("holder", f"token-{number}", b"tensors")
    tokens = [order.token for order in fleet.orders("wants") if isinstance(order, RelayedTensors)]
    assert tokens == ["token-1", f"token-{MOST_WANTED}"]
