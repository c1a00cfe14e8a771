import asyncio
from dataclasses import dataclass

import pytest

from gateway.store.pacer import Pacer

CHUNK = 1000


@dataclass
class Machine:
    """A clock that sleeping moves on, and a fleet that is busy or not."""

    time: float = 100.0
    busy: bool = False
    looks: int = 0

    def now(self) -> float:
        return self.time

    async def sleep(self, duration_s: float) -> None:
        self.time += duration_s
        await asyncio.sleep(0)

    def is_busy(self) -> bool:
        self.looks += 1
        return self.busy

    def pacer(self, rate: float, busy_rate: float) -> Pacer:
        return Pacer(rate, busy_rate, self.is_busy, self.now, self.sleep)


async def transfer(machine: Machine, pacer: Pacer, size: int) -> float:
    """Return the seconds that `size` bytes take."""
    started = machine.time
    for _ in range(size // CHUNK):
        await pacer.take(CHUNK)
    return machine.time - started


@pytest.mark.parametrize(("busy", "seconds"), [(False, 1.0), (True, 10.0)])
async def test_transfers_keep_to_the_rate_for_the_load(busy: bool, seconds: float) -> None:
    machine = Machine(busy=busy)
    assert await transfer(machine, machine.pacer(1e6, 1e5), 10**6) == pytest.approx(
        seconds, abs=0.1
    )


async def test_a_pause_between_requests_does_not_make_a_fleet_idle() -> None:
    machine = Machine(busy=True)
    pacer = machine.pacer(1e6, 1e5)
    await pacer.take(CHUNK)
    machine.busy = False
    assert await transfer(machine, pacer, 50_000) == pytest.approx(0.5, abs=0.1)


async def test_transfers_are_fast_again_a_second_after_the_last_request() -> None:
    machine = Machine(busy=True)
    pacer = machine.pacer(1e6, 1e5)
    await pacer.take(CHUNK)
    machine.busy = False
    await machine.sleep(1.1)
    assert await transfer(machine, pacer, 10**6) == pytest.approx(1.0, abs=0.1)


async def test_the_rate_of_a_busy_fleet_is_never_above_the_other() -> None:
    machine = Machine(busy=True)
    assert await transfer(machine, machine.pacer(1e5, 1e6), 10**5) == pytest.approx(1.0, abs=0.1)


async def test_cancelled_transfers_do_not_delay_others() -> None:
    turn = asyncio.Event()
    slept: list[float] = []

    async def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        await turn.wait()

    pacer = Pacer(CHUNK, 0, lambda: False, lambda: 100.0, sleep)
    await pacer.take(CHUNK)
    cancelled = [asyncio.create_task(pacer.take(CHUNK)) for _ in range(100)]
    await asyncio.sleep(0)
    for each in cancelled:
        each.cancel()
    await asyncio.wait(cancelled)
    turn.set()
    await pacer.take(CHUNK)
    assert sum(slept[1:]) == pytest.approx(1.0, abs=0.1)


async def test_large_chunks_get_no_larger_share() -> None:
    machine = Machine()
    pacer = machine.pacer(1e6, 0)
    large = asyncio.create_task(pacer.take(64 << 20))
    await asyncio.sleep(0)
    started = machine.time
    await pacer.take(CHUNK)
    assert machine.time - started < 1.0  # 67 s if it waited for the whole chunk
    large.cancel()
    await asyncio.wait([large])


async def test_waiting_transfers_follow_the_fleet_when_it_is_idle_again() -> None:
    machine = Machine(busy=True)
    pacer = machine.pacer(1e6, 1e3)
    await pacer.take(CHUNK)
    waiting = [asyncio.create_task(pacer.take(CHUNK)) for _ in range(100)]
    machine.busy = False
    started = machine.time
    await asyncio.wait(waiting)
    assert machine.time - started < 3.0  # 100 s at the rate of a busy fleet


async def test_zero_is_no_limit() -> None:
    machine = Machine()
    assert await transfer(machine, machine.pacer(0, 0), 10**6) == 0.0


async def test_transfers_look_at_the_fleet_less_often_than_for_every_chunk() -> None:
    machine = Machine()
    await transfer(machine, machine.pacer(0, 1e5), 10**6)
    assert machine.looks == 1
