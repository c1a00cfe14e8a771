"""An queue that lets items gather before they are sent."""

from __future__ import annotations

import asyncio

from gateway.send_queue import SendQueue

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
