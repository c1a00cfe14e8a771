"""The order in which waiting queries of a client get a slot."""

import asyncio

import pytest

from synergai.client.connection import PrioritySemaphore
from synergai.errors import DeadlineExceeded
from tests.waiting import turns


class Holders:
    """Tasks that acquire a semaphore and hold it until `release` is set.

    Attributes:
        acquired: names of the tasks in the order in which they acquired it.
    """

    def __init__(self, limit: int) -> None:
        self.semaphore = PrioritySemaphore(limit)
        self.acquired: list[str] = []
        self.release = asyncio.Event()

    def start(
        self, name: str, priority: int = 0, seconds: float | None = None
    ) -> asyncio.Task[float | None]:
        async def hold() -> float | None:
            async with self.semaphore.acquire(priority, seconds) as remaining:
                self.acquired.append(name)
                await self.release.wait()
                return remaining

        return asyncio.create_task(hold())

    async def settle(self) -> None:
        await turns(10)


async def test_concurrent_holders_are_limited() -> None:
    holders = Holders(2)
    tasks = [holders.start(name) for name in "abc"]
    await holders.settle()
    assert holders.acquired == ["a", "b"]
    holders.release.set()
    await asyncio.gather(*tasks)
    assert holders.acquired == ["a", "b", "c"]


async def test_waiters_are_ordered_by_priority_then_deadline_then_arrival() -> None:
    holders = Holders(1)
    tasks = [
        holders.start("holder"),
        holders.start("patient"),
        holders.start("late", seconds=60.0),
        holders.start("soon", seconds=30.0),
        holders.start("first", priority=9),
        holders.start("also patient"),
    ]
    await holders.settle()
    holders.release.set()
    await asyncio.gather(*tasks)
    assert holders.acquired == ["holder", "first", "soon", "late", "patient", "also patient"]


async def test_slot_skips_a_cancelled_waiter() -> None:
    holders = Holders(1)
    first, cancelled, last = (holders.start(name) for name in ("first", "cancelled", "last"))
    await holders.settle()
    first.cancel()
    cancelled.cancel()
    await holders.settle()
    assert holders.acquired == ["first", "last"]
    holders.release.set()
    await last


async def test_waiter_cancelled_after_its_grant_passes_the_slot_on() -> None:
    holders = Holders(1)
    first, second, third = (holders.start(name) for name in ("first", "second", "third"))
    await holders.settle()
    holders.release.set()
    await first  # has granted its slot to the second, which has not resumed yet
    second.cancel()
    await third
    assert "third" in holders.acquired


async def test_deadline_can_expire_while_waiting() -> None:
    holders = Holders(1)
    first, waiting = holders.start("first"), holders.start("waiting", seconds=0.0)
    with pytest.raises(DeadlineExceeded, match="other queries of this client"):
        await waiting
    holders.release.set()
    await first
    assert await holders.start("after") is None


async def test_time_spent_waiting_counts_against_the_deadline() -> None:
    holders = Holders(1)
    first, second = holders.start("first"), holders.start("second", seconds=60.0)
    await holders.settle()
    holders.release.set()
    await first
    remaining = await second
    assert remaining is not None
    assert remaining < 60.0
    assert await holders.start("third", seconds=60.0) == 60.0


async def test_waiters_that_gave_up_behind_others_are_forgotten() -> None:
    holders = Holders(1)
    tasks = [holders.start("holder"), *(holders.start("first", priority=1) for _ in range(3))]
    await holders.settle()
    for _ in range(100):
        late = holders.start("late")
        await holders.settle()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
    assert len(holders.semaphore._waiters) < 10
    holders.release.set()
    await asyncio.gather(*tasks)
    assert holders.acquired == ["holder", "first", "first", "first"]
