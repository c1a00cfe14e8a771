import gc
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from synergai.client import sync

UNFINISHED = """
from synergai.client.sync import shared_loop

async def numbers():
    yield 1
    yield 2

class Late:
    def __del__(self):
        try:
            shared_loop().run(anext(numbers()))
        except Exception as error:
            print(error)

late, answers = Late(), shared_loop().iterate(numbers())
print(next(answers))
"""


def test_threads_that_start_at_once_share_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowToStart:
        def __init__(self) -> None:
            with suppress(threading.BrokenBarrierError):
                others.wait(0.05)  # for other threads that start one as well

    others = threading.Barrier(4)
    monkeypatch.setattr(sync, "LoopThread", SlowToStart)
    sync._shared_loop.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            loops = list(pool.map(lambda _: sync.shared_loop(), range(4)))
    finally:
        sync._shared_loop.cache_clear()
    assert len(set(map(id, loops))) == 1


def test_script_ends_that_has_not_finished_an_iterator() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", UNFINISHED], capture_output=True, text=True, timeout=20, check=False
    )
    printed = "1\nthe interpreter is exiting\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, printed, "")


def test_iterator_that_the_loop_collects_is_closed() -> None:
    closed = threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    async def collect() -> None:
        gc.collect()

    loop = sync.shared_loop()
    gc.disable()
    try:
        answers = loop.iterate(numbers())
        assert next(answers) == 1
        cycle: list[object] = [answers]
        cycle.append(cycle)
        del answers, cycle
        loop.run(collect())
    finally:
        gc.enable()
    assert closed.wait(10)
