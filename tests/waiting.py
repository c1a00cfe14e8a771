"""Waiting for what other tasks and processes do."""

import asyncio
import time
from collections.abc import Callable

import psutil


async def turns(count: int = 5) -> None:
    """Let all tasks run that can, this many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], pause_s: float = 0.0) -> None:
    """Wait until a condition holds that has no event."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - as it says
            await asyncio.sleep(pause_s)


def wait_until(
    condition: Callable[[], object],
    within_s: float = 60.0,
    fault: str = "the condition was not met",
) -> float:
    """Wait until a condition on other processes holds; return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + within_s, fault
        time.sleep(0.02)
    return time.monotonic() - began


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, even if nothing has waited for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
