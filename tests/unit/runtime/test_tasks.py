import asyncio
import gc
from collections.abc import Coroutine
from typing import NoReturn

import pytest

from synergai.errors import NotFound
from synergai.runtime.tasks import TaskBag, run_to_end
from tests.waiting import turns, until


async def fail() -> NoReturn:
    await asyncio.sleep(0)
    raise ValueError("a bug")


async def forever(cancelled: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.append("cancelled")


async def test_closing_cancels_the_tasks_and_waits_for_them() -> None:
    bag, cancelled = TaskBag(), list[str]()
    bag.start(forever(cancelled))
    await asyncio.sleep(0)
    await bag.close()
    assert (cancelled, len(bag)) == (["cancelled"], 0)


async def test_leaving_the_block_of_a_bag_cancels_its_tasks() -> None:
    cancelled = list[str]()
    async with TaskBag() as bag:
        bag.start(forever(cancelled))
        await asyncio.sleep(0)
    assert (cancelled, len(bag)) == (["cancelled"], 0)


async def test_failure_of_an_awaited_task_is_raised_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with TaskBag() as bag:
        awaited, ignored = bag.start_awaited(fail()), bag.start_awaited(fail())
        with pytest.raises(ValueError, match="a bug"):
            await awaited
        await bag.wait()
    del awaited, ignored
    gc.collect()
    assert not caplog.text


async def test_cancelled_caller_waits_for_work_that_runs_to_its_end() -> None:
    release, done = asyncio.Event(), list[str]()

    async def work() -> None:
        await release.wait()
        done.append("done")

    caller = asyncio.create_task(run_to_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await turns(5)
    assert not caller.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == ["done"]


async def test_failure_is_logged_and_ends_no_other_task(caplog: pytest.LogCaptureFixture) -> None:
    bag, cancelled = TaskBag(), list[str]()
    bag.start(forever(cancelled))
    bag.start(fail())
    await until(lambda: len(bag) <= 1)
    assert ("a bug" in caplog.text, cancelled) == (True, [])
    await bag.close()


async def test_waiting_includes_tasks_that_the_tasks_start() -> None:
    bag, done = TaskBag(), list[int]()

    async def count(left: int) -> None:
        await asyncio.sleep(0)
        done.append(left)
        if left:
            bag.start(count(left - 1))

    bag.start(count(2))
    await bag.wait()
    assert done == [2, 1, 0]


@pytest.mark.parametrize("gone", [False, True])
async def test_work_is_completed_and_its_failure_goes_to_the_caller_while_there_is_one(
    caplog: pytest.LogCaptureFixture, gone: bool
) -> None:
    bag = TaskBag()

    def start(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(bag.complete(work))

    caller = start(fail())
    await asyncio.sleep(0)
    if gone:
        caller.cancel()
    await bag.wait()
    with pytest.raises(asyncio.CancelledError if gone else ValueError):
        await caller
    assert ("a bug" in caplog.text) == gone


async def test_refusal_whose_caller_is_gone_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse() -> NoReturn:
        await asyncio.sleep(0)
        raise NotFound("there is none")

    bag = TaskBag()
    caller = asyncio.create_task(bag.complete(refuse()))
    await asyncio.sleep(0)
    caller.cancel()
    await bag.wait()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not caplog.text
