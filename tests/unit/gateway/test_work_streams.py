"""Orders on a worker's work stream."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.fleet.worker import Order, RunAssignment, SendInputs, StopAssignment
from gateway.hub.work_streams import LARGE_BYTES, WorkStreams, pack_orders
from synergai.domain import AssignmentId, BatchTimes
from synergai.wire.work_messages import Orders
from tests.cores import new_assignment
from tests.unit.gateway.conftest import ECHO, make_worker
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


class Setup:
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
async def setup() -> Setup:
    setup = Setup()
    await asyncio.sleep(0)
    return setup


async def test_assignments_of_a_busy_worker_are_collected(setup: Setup) -> None:
    for number in (1, 2, 3):
        setup.worker.orders.put(setup.order(number))
    assert setup.transport.sent == [[1]]
    del setup.worker.in_flight[AssignmentId(1)]
    for _ in range(100):
        await asyncio.sleep(0)
        setup.worker.orders.recheck()
    assert setup.transport.sent == [[1], [2, 3]]


async def test_a_large_request_is_sent_at_once(setup: Setup) -> None:
    for number in (1, 2, 3):
        setup.worker.orders.put(setup.order(number, size=LARGE_BYTES))
    assert setup.transport.sent == [[1], [2], [3]]


async def test_orders_that_concern_an_assignment_follow_it(setup: Setup) -> None:
    setup.worker.orders.put(setup.order(1))
    setup.worker.orders.put(StopAssignment(AssignmentId(1)))
    await turns()
    assert setup.transport.sent == [[1], [1]]


async def test_failure_to_send_ends_the_stream_and_not_what_the_dispatcher_does(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_message: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(setup.transport, "send_message", fail)
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
