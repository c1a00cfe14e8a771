"""An outbox that lets items gather before they are sent."""

from __future__ import annotations

import asyncio

from gateway.send_queue import Outbox

LONG_S = 60.0


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_items_gather_until_there_are_enough() -> None:
    outbox: Outbox[int] = Outbox(10)
    gathering = asyncio.create_task(outbox.gather_until(lambda count: count >= 2, LONG_S))
    await turns()
    outbox.put(1)
    await turns()
    assert not gathering.done()
    outbox.put(2)
    assert await gathering == [1, 2]


async def test_nudge_lets_what_has_changed_elsewhere_count() -> None:
    outbox: Outbox[int] = Outbox(10)
    idle = False
    gathering = asyncio.create_task(outbox.gather_until(lambda _: idle, LONG_S))
    await turns()
    outbox.put(1)
    idle = True
    outbox.nudge()
    assert await gathering == [1]


async def test_what_has_gathered_goes_when_its_time_is_over() -> None:
    outbox: Outbox[int] = Outbox(10)
    outbox.put(1)
    assert await outbox.gather_until(lambda _: False, 0.0) == [1]


async def test_end_of_the_stream_ends_the_gathering() -> None:
    outbox: Outbox[int] = Outbox(10)
    gathering = asyncio.create_task(outbox.gather_until(lambda _: False, LONG_S))
    await turns()
    outbox.close()
    assert await gathering == []
