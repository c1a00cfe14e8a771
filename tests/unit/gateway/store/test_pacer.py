import asyncio
from dataclasses import dataclass

import pytest

from gateway.hub.store.transfers import Pacer

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
        await pacer.wait_turn(CHUNK)
    return machine.time - started


@pytest.mark.parametrize(("busy", "seconds"), [(False, 1.0), (True, 10.0)])
async def test_transfers_keep_to_the_rate_for_the_load(busy: bool, seconds: float) -> None:
    machine = Machine(busy=busy)
    assert await transfer(machine, machine.pacer(1e6, 1e5), 10**6) == pytest.approx(
        seconds, abs=0.1
    )


async def test_cancelled_transfers_do_not_delay_others() -> None:
    turn = asyncio.Event()
    slept: list[float] = []

    async def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        await turn.wait()

    pacer = Pacer(CHUNK, 0, lambda: False, lambda: 100.0, sleep)
    await pacer.wait_turn(CHUNK)
    cancelled = [asyncio.create_task(pacer.wait_turn(CHUNK)) for _ in range(100)]
    await asyncio.sleep(0)
    for each in cancelled:
        each.cancel()
    await asyncio.wait(cancelled)
    turn.set()
    await pacer.wait_turn(CHUNK)
    assert sum(slept[1:]) == pytest.approx(1.0, abs=0.1)
