"""Merging of reports in the send queue."""

from __future__ import annotations

import asyncio

import pytest

from synergai.v1 import hub_pb2
from worker_agent.hub_client.send_queue import BATCH_BYTES, MergingSendQueue


async def sent(queue: MergingSendQueue) -> list[bytes]:
    """Return the messages that the queue writes for its current contents."""
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)

    task = asyncio.create_task(queue.send_all(write))
    await queue.wait_empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return written


def report(assignment_id: int) -> bytes:
    started = hub_pb2.Started(assignment_id=assignment_id)
    return hub_pb2.WorkReports(started=[started]).SerializeToString()


async def test_reports_of_one_loop_turn_are_merged() -> None:
    queue = MergingSendQueue(merge=True)
    for assignment_id in (1, 2, 3):
        queue.put(report(assignment_id))
    (data,) = await sent(queue)
    merged = hub_pb2.WorkReports.FromString(data)
    assert [started.assignment_id for started in merged.started] == [1, 2, 3]


async def test_unmergeable_messages_are_sent_separately() -> None:
    queue = MergingSendQueue(merge=False)
    queue.put(b"a")
    queue.put(b"b")
    assert await sent(queue) == [b"a", b"b"]


@pytest.mark.parametrize("size", [BATCH_BYTES, BATCH_BYTES + 1])
async def test_merged_message_has_a_bound_and_keeps_the_order(size: int) -> None:
    queue = MergingSendQueue(merge=True)
    parts = [b"a", bytes(size), b"b", b"c"]
    for part in parts:
        queue.put(part)
    assert await sent(queue) == [b"a", bytes(size), b"bc"]


async def test_queue_is_empty_only_once_everything_is_written() -> None:
    queue = MergingSendQueue(merge=True)
    queue.put(b"a")
    gate = asyncio.Event()

    async def write(_data: bytes) -> None:
        await gate.wait()

    task = asyncio.create_task(queue.send_all(write))
    waiting = asyncio.create_task(queue.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    await waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
