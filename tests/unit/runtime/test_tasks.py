import asyncio
from collections.abc import Coroutine
from typing import NoReturn

import pytest

from synergai.errors import NotFound
from synergai.runtime.tasks import TaskBag
from tests.waiting import until


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
