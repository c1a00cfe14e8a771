import asyncio

import pytest

from synergai.errors import Overloaded, Unavailable
from synergai.runtime.send_queue import SendQueue
from tests.waiting import turns

LONG_S = 60.0


async def test_items_are_collected_until_there_are_enough() -> None:
    queue: SendQueue[int] = SendQueue(10)
    collecting = asyncio.create_task(queue.collect_until(lambda count: count >= 2, LONG_S))
    await turns()
    queue.put(1)
    await turns()
    assert not collecting.done()
    queue.put(2)
    assert await collecting == [1, 2]


async def test_recheck_evaluates_the_condition_again() -> None:
    queue: SendQueue[int] = SendQueue(10)
    idle = False
    collecting = asyncio.create_task(queue.collect_until(lambda _: idle, LONG_S))
    await turns()
    queue.put(1)
    idle = True
    queue.recheck()
    assert await collecting == [1]


async def test_the_condition_is_checked_by_who_puts_items() -> None:
    queue: SendQueue[int] = SendQueue(10)
    counts: list[int] = []

    def enough(count: int) -> bool:
        counts.append(count)
        return count >= 3

    collecting = asyncio.create_task(queue.collect_until(enough, LONG_S))
    await turns()
    for number in range(3):
        queue.put(number)
    assert counts == [0, 1, 2, 3]
    assert await collecting == [0, 1, 2]


async def test_collecting_times_out() -> None:
    queue: SendQueue[int] = SendQueue(10)
    queue.put(1)
    assert await queue.collect_until(lambda _: False, 0.0) == [1]


async def test_closing_the_queue_ends_collecting() -> None:
    queue: SendQueue[int] = SendQueue(10)
    collecting = asyncio.create_task(queue.collect_until(lambda _: False, LONG_S))
    await turns()
    queue.close()
    assert await collecting == []


async def test_items_of_one_turn_are_one_batch() -> None:
    queue: SendQueue[int] = SendQueue(10)
    taking = asyncio.create_task(queue.get_batch())
    for number in range(3):
        queue.put(number)
    assert await taking == [0, 1, 2]


async def test_closed_queue_returns_its_items_then_nothing() -> None:
    queue: SendQueue[int] = SendQueue(10)
    queue.put(1)
    queue.close()
    queue.put(2)
    assert await queue.get_batch() == [1]
    assert await queue.get_batch() == []


async def test_queue_closed_with_an_error_raises_it_at_once() -> None:
    queue: SendQueue[int] = SendQueue(10)
    queue.put(1)
    queue.close(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await queue.get_batch()


async def test_queue_is_bounded() -> None:
    queue: SendQueue[int] = SendQueue(2)
    for number in range(5):
        queue.put(number)
    with pytest.raises(Overloaded):
        await queue.get_batch()


async def test_items_are_collected_until_the_loop_is_idle() -> None:
    queue: SendQueue[int] = SendQueue(10)

    async def put_one_every_third_turn() -> None:
        for number in range(4):
            await turns(3)
            queue.put(number)

    putting = asyncio.create_task(put_one_every_third_turn())
    assert await queue.collect_until_idle(turns=4, timeout_s=60.0) == [0, 1, 2, 3]
    await putting


async def test_collecting_until_idle_times_out() -> None:
    queue: SendQueue[int] = SendQueue(10)
    queue.put(1)
    assert await queue.collect_until_idle(turns=10**9, timeout_s=0.0) == [1]


async def test_an_item_is_awaited_until_the_first_one_of_a_batch_is_put() -> None:
    queue: SendQueue[int] = SendQueue(10)
    waiting = asyncio.create_task(queue.get_batch())
    await turns()
    awaited = [queue.is_awaited]
    queue.put(1)
    awaited.append(queue.is_awaited)
    assert await waiting == [1]
    assert awaited == [True, False]


async def test_no_item_is_awaited_while_others_are_collected_or_the_queue_is_closed() -> None:
    queue: SendQueue[int] = SendQueue(10)
    queue.put(0)
    assert not queue.is_awaited
    collecting = asyncio.create_task(queue.collect_until(lambda count: count >= 2, LONG_S))
    await turns()
    assert not queue.is_awaited
    queue.put(1)
    assert await collecting == [0, 1]
    waiting = asyncio.create_task(queue.get_batch())
    await turns()
    queue.close()
    assert not queue.is_awaited
    assert await waiting == []


async def test_item_is_written_when_the_handler_asks_for_the_next_ones() -> None:
    queue: SendQueue[int] = SendQueue(10)
    written: list[int] = []
    queue.put(1, lambda: written.append(1))
    assert await queue.get_batch() == [1]
    queue.put(2, lambda: written.append(2))
    assert not written
    assert await queue.get_batch() == [2]
    assert written == [1]
    queue.put(3, lambda: written.append(3))
    queue.close()
    queue.put(4, lambda: written.append(4))
    assert written == [1, 2, 3, 4]
