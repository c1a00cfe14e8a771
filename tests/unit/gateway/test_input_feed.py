"""The room that the tensors of jobs take."""

import asyncio

from gateway.jobs.input_feed import TensorRoom
from synergai.domain import EngineName, Job, JobId
from tests.waiting import turns


def job(name: str, priority: int = 0) -> Job:
    return Job(id=JobId(name), engine=EngineName("net"), queries=1, arrival=0.0, priority=priority)


async def waiting(room: TensorRoom, *sizes: int) -> list[asyncio.Task[None]]:
    """Let a job wait for each of these sizes, in this order."""
    tasks = [asyncio.create_task(room.take(job(f"waiting-{size}"), size)) for size in sizes]
    await turns()
    return tasks


async def test_most_urgent_job_gets_the_next_room() -> None:
    room, order = TensorRoom(10), list[str]()

    async def take(name: str, priority: int) -> None:
        await room.take(job(name, priority), 6)
        order.append(name)

    await room.take(job("first"), 6)
    tasks = [asyncio.create_task(take("low", 0)), asyncio.create_task(take("high", 5))]
    await turns()
    assert not room.try_take(1)  # others wait
    room.give(6)
    await turns()
    assert order == ["high"]
    room.give(6)
    await asyncio.wait(tasks)
    assert order == ["high", "low"]


async def test_one_query_may_need_more_than_there_is() -> None:
    room = TensorRoom(10)
    await room.take(job("large"), 50)
    assert not room.try_take(1)
    room.give(50)
    assert room.try_take(10)


async def test_job_that_leaves_while_it_waits_takes_no_room() -> None:
    room = TensorRoom(10)
    await room.take(job("first"), 10)
    gone, granted = await waiting(room, 9, 10)
    gone.cancel()
    await turns()
    room.give(10)
    granted.cancel()  # after it was granted, before it knows
    await asyncio.wait([gone, granted])
    assert room.used_bytes == 0


async def test_job_that_leaves_lets_smaller_ones_behind_it_pass_at_once() -> None:
    room = TensorRoom(10)
    await room.take(job("first"), 6)
    large, small = await waiting(room, 8, 3)
    large.cancel()
    await asyncio.wait([large])
    await turns()
    assert small.done()
    assert room.try_take(1)
