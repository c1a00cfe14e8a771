"""Who of a client's many queries goes next."""

from __future__ import annotations

import asyncio

import pytest

from synergai.client.priority_semaphore import Gate
from synergai.errors import DeadlineExceeded


class Crowd:
    """Tasks that go through a gate one after the other, when they are told to."""

    def __init__(self, limit: int) -> None:
        self.gate = Gate(limit)
        self.inside: list[str] = []
        self.leave = asyncio.Event()

    def come(
        self, name: str, priority: int = 0, seconds: float | None = None
    ) -> asyncio.Task[float | None]:
        async def go() -> float | None:
            async with self.gate.passed(priority, seconds) as left:
                self.inside.append(name)
                await self.leave.wait()
                return left

        return asyncio.create_task(go())

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_no_more_than_the_limit_are_inside() -> None:
    crowd = Crowd(2)
    tasks = [crowd.come(name) for name in "abc"]
    await crowd.settle()
    assert crowd.inside == ["a", "b"]
    crowd.leave.set()
    await asyncio.gather(*tasks)
    assert crowd.inside == ["a", "b", "c"]


async def test_first_by_priority_then_by_deadline_then_by_arrival() -> None:
    crowd = Crowd(1)
    tasks = [
        crowd.come("inside"),
        crowd.come("patient"),
        crowd.come("late", seconds=60.0),
        crowd.come("soon", seconds=30.0),
        crowd.come("first", priority=9),
        crowd.come("also patient"),
    ]
    await crowd.settle()
    crowd.leave.set()
    await asyncio.gather(*tasks)
    assert crowd.inside == ["inside", "first", "soon", "late", "patient", "also patient"]


async def test_place_of_one_who_gives_up_goes_to_the_next() -> None:
    crowd = Crowd(1)
    first, given_up, last = (crowd.come(name) for name in ("first", "given up", "last"))
    await crowd.settle()
    first.cancel()
    given_up.cancel()
    await crowd.settle()
    assert crowd.inside == ["first", "last"]
    crowd.leave.set()
    await last


async def test_one_who_is_cancelled_at_their_turn_passes_it_on() -> None:
    crowd = Crowd(1)
    first, second, third = (crowd.come(name) for name in ("first", "second", "third"))
    await crowd.settle()
    crowd.leave.set()
    await first  # has just given its place to the second, who has not come in yet
    second.cancel()
    await third
    assert "third" in crowd.inside


async def test_deadline_passes_outside_as_well() -> None:
    crowd = Crowd(1)
    first, waiting = crowd.come("first"), crowd.come("waiting", seconds=0.0)
    with pytest.raises(DeadlineExceeded, match="others of this client"):
        await waiting
    crowd.leave.set()
    await first
    assert await crowd.come("after") is None


async def test_time_spent_waiting_is_not_given_again() -> None:
    crowd = Crowd(1)
    first, second = crowd.come("first"), crowd.come("second", seconds=60.0)
    await crowd.settle()
    crowd.leave.set()
    await first
    left = await second
    assert left is not None
    assert left < 60.0
    assert await crowd.come("third", seconds=60.0) == 60.0
