import asyncio
import concurrent.futures
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress

import pytest

from synergai.client import sync
from synergai.client.streaming import advance_in_thread

WAITING = """
import threading
from synergai.client.sync import _BackgroundClient, shared_loop

def numbers():
    yield 1
    threading.Event().wait()

async def second(answers):
    assert await anext(answers) == 1
    await anext(answers)

waiting = [_BackgroundClient._iterate(numbers()) for _ in range(50)]
for answers in waiting:
    threading.Thread(target=shared_loop().run, args=(second(answers),), daemon=True).start()
print(shared_loop().run(anext(_BackgroundClient._iterate(numbers()))))
"""

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


def test_inputs_that_wait_for_ever_hold_up_neither_others_nor_the_exit() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=20, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


@pytest.mark.timeout(15)
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (concurrent.futures.CancelledError, concurrent.futures.CancelledError),
        (asyncio.CancelledError, concurrent.futures.CancelledError),
        (GeneratorExit, GeneratorExit),
        (KeyboardInterrupt, KeyboardInterrupt),
        (SystemExit, SystemExit),
    ],
)
def test_whatever_a_call_raises_reaches_the_caller_and_leaves_the_loop_running(
    raised: type[BaseException], expected: type[BaseException]
) -> None:
    async def fail() -> None:
        raise raised("no more")

    async def fail_in_a_task() -> None:
        await asyncio.create_task(fail())

    loop = sync.shared_loop()
    for call in (fail, fail_in_a_task):
        with pytest.raises(expected):
            loop.run(call())
    assert loop.run(asyncio.sleep(0, "running")) == "running"


@pytest.mark.timeout(15)
@pytest.mark.parametrize(
    "raised",
    [
        asyncio.CancelledError,
        concurrent.futures.CancelledError,
        concurrent.futures.InvalidStateError,
        GeneratorExit,
        KeyboardInterrupt,
        SystemExit,
    ],
)
async def test_iterator_in_a_thread_raises_its_own_error(raised: type[BaseException]) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise raised("no more")

    with pytest.raises(raised, match="no more") as failure:
        await anext(advance_in_thread(Broken()))
    assert failure.type is raised


def test_generator_of_inputs_ends_in_its_thread_where_the_client_may_be_called() -> None:
    ended: list[str] = []
    closed = threading.Event()

    def numbers() -> Iterator[dict[str, int]]:
        try:
            yield {"x": 1}
            yield {"x": 2}
        finally:
            ended.append(threading.current_thread().name)
            closed.set()

    async def first() -> object:
        async with aclosing(advance_in_thread(numbers())) as items:
            return await anext(items)

    assert sync.shared_loop().run(first()) == {"x": 1}
    assert closed.wait(10)
    assert ended == ["synergai-inputs"]
