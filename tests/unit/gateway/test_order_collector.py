"""Orders of a worker are collected while waiting costs nothing."""

import asyncio
from typing import Any, cast

import pytest

from gateway.fleet.worker import ConnectedWorker, Order, StopAssignment
from gateway.hub import work_streams
from gateway.hub.work_streams import CONCURRENT_S, OrderCollector
from synergai.domain import AssignmentId
from tests.unit.gateway.conftest import make_worker
from tests.waiting import turns

AN_HOUR_S = 3600.0


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


class Setup:
    """A worker whose orders are collected."""

    def __init__(self, *, local: bool) -> None:
        self.clock = FakeClock()
        self.worker: ConnectedWorker = make_worker()
        self.worker.local = local
        self.collector = OrderCollector(self.worker, cast("Any", self.clock))

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


async def collect(setup: Setup, first: Order, later: Order) -> list[Order]:
    """Collect `first`, and `later` if it waits for an order that comes some turns later."""
    putting = asyncio.create_task(setup.put_after_turns(later))
    collected = await setup.collect([first])
    await putting
    return collected


async def test_orders_wait_until_they_are_half_of_the_assignments_in_flight() -> None:
    setup = Setup(local=False)
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


async def test_the_first_order_is_sent_at_once_to_an_agent_that_has_answered_all_others() -> None:
    setup = Setup(local=False)
    await setup.collect([setup.start(1), setup.start(2)])
    for number in (1, 2):
        setup.end(number)
    first, later = setup.start(3), StopAssignment(AssignmentId(4))
    assert await collect(setup, first, later) == [first]


async def test_orders_to_an_agent_in_this_process_wait_until_the_loop_is_idle() -> None:
    setup = Setup(local=True)
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


async def test_the_first_order_waits_for_others_if_several_were_in_flight_lately() -> None:
    setup = Setup(local=True)
    await setup.collect([setup.start(1), setup.start(2)])
    for number in (1, 2):
        setup.end(number)
    setup.clock.time += 0.5 * CONCURRENT_S
    first, later = setup.start(3), StopAssignment(AssignmentId(4))
    assert await collect(setup, first, later) == [first, later]


async def test_the_first_order_is_sent_at_once_some_time_after_several_were_in_flight() -> None:
    setup = Setup(local=True)
    await setup.collect([setup.start(1), setup.start(2)])
    for number in (1, 2):
        setup.end(number)
    setup.clock.time += CONCURRENT_S
    first, later = setup.start(3), StopAssignment(AssignmentId(4))
    assert await collect(setup, first, later) == [first]
