"""Merging of reports in the send queue."""

import asyncio
from typing import TypeVar

import pytest

from synergai.protocol.work_messages import Reports
from synergai.v1 import hub_pb2
from worker_agent.hub_client.send_queue import BATCH_BYTES, MERGED_REPORTS, MergingSendQueue

T = TypeVar("T")


async def sent(queue: MergingSendQueue[T]) -> list[T]:
    """Return the messages that the queue writes for its current contents."""
    written: list[T] = []

    async def write(message: T) -> None:
        written.append(message)

    task = asyncio.create_task(queue.send_all(write))
    await queue.wait_empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return written


def started(assignment_id: int) -> Reports:
    return Reports(started=[hub_pb2.Started(assignment_id=assignment_id)])


def progress(response: bytes) -> Reports:
    return Reports(progress=[(hub_pb2.Progress(), [response])])


async def test_reports_of_one_loop_turn_are_merged() -> None:
    queue = MergingSendQueue(MERGED_REPORTS)
    for assignment_id in (1, 2, 3):
        queue.put(started(assignment_id))
    (merged,) = await sent(queue)
    assert [each.assignment_id for each in merged.started] == [1, 2, 3]


async def test_unmergeable_messages_are_sent_separately() -> None:
    queue = MergingSendQueue[bytes]()
    queue.put(b"a")
    queue.put(b"b")
    assert await sent(queue) == [b"a", b"b"]


@pytest.mark.parametrize("size", [BATCH_BYTES, BATCH_BYTES + 1])
async def test_merged_message_has_a_bound_and_keeps_the_order(size: int) -> None:
    queue = MergingSendQueue(MERGED_REPORTS)
    for response in (b"a", bytes(size), b"b", b"c"):
        queue.put(progress(response))
    messages = await sent(queue)
    responses = [[response for _, (response,) in each.progress] for each in messages]
    assert responses == [[b"a"], [bytes(size)], [b"b", b"c"]]


async def test_queue_is_empty_only_once_everything_is_written() -> None:
    queue = MergingSendQueue[bytes]()
    queue.put(b"a")
    gate = asyncio.Event()

    async def write(_message: bytes) -> None:
        await gate.wait()

    task = asyncio.create_task(queue.send_all(write))
    waiting = asyncio.create_task(queue.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    await waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
