"""An queue that lets items gather before they are sent."""

from __future__ import annotations

import asyncio

import pytest

from gateway.send_queue import SendQueue
from synergai.errors import Overloaded, Unavailable

LONG_S = 60.0


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_items_gather_until_there_are_enough() -> None:
    queue: SendQueue[int] = SendQueue(10)
    gathering = asyncio.create_task(queue.collect_until(lambda count: count >= 2, LONG_S))
    await turns()
    queue.put(1)
    await turns()
    assert not gathering.done()
    queue.put(2)
    assert await gathering == [1, 2]


async def test_nudge_lets_what_has_changed_elsewhere_count() -> None:
    queue: SendQueue[int] = SendQueue(10)
    idle = False
    gathering = asyncio.create_task(queue.collect_until(lambda _: idle, LONG_S))
    await turns()
    queue.put(1)
    idle = True
    queue.recheck()
    assert await gathering == [1]


async def test_what_has_gathered_goes_when_its_time_is_over() -> None:
    queue: SendQueue[int] = SendQueue(10)
    queue.put(1)
    assert await queue.collect_until(lambda _: False, 0.0) == [1]


async def test_end_of_the_stream_ends_the_gathering() -> None:
    queue: SendQueue[int] = SendQueue(10)
    gathering = asyncio.create_task(queue.collect_until(lambda _: False, LONG_S))
    await turns()
    queue.close()
    assert await gathering == []


async def test_outbox_gives_all_that_came_in_one_turn_at_once() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    taking = asyncio.create_task(outbox.get_batch())
    for number in range(3):
        outbox.put(number)
    assert await taking == [0, 1, 2]


async def test_closed_outbox_gives_what_waits_and_then_nothing() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    outbox.put(1)
    outbox.close()
    outbox.put(2)
    assert await outbox.get_batch() == [1]
    assert await outbox.get_batch() == []


async def test_outbox_closed_with_an_error_raises_it_at_once() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    outbox.put(1)
    outbox.close(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await outbox.get_batch()


async def test_outbox_of_a_peer_that_does_not_read_is_bounded() -> None:
    outbox: SendQueue[int] = SendQueue(2)
    for number in range(5):
        outbox.put(number)
    with pytest.raises(Overloaded):
        await outbox.get_batch()


async def test_outbox_gathers_for_as_long_as_items_keep_coming() -> None:
    outbox: SendQueue[int] = SendQueue(10)

    async def put_one_every_third_turn() -> None:
        for number in range(4):
            for _ in range(3):
                await asyncio.sleep(0)
            outbox.put(number)

    putting = asyncio.create_task(put_one_every_third_turn())
    assert await outbox.collect_until_idle(turns=4, timeout_s=60.0) == [0, 1, 2, 3]
    await putting


async def test_outbox_does_not_gather_for_longer_than_it_may() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    outbox.put(1)
    assert await outbox.collect_until_idle(turns=10**9, timeout_s=0.0) == [1]
