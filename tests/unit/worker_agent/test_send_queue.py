"""How reports are merged on their way out."""

from __future__ import annotations

import asyncio

import pytest

from synergai.v1 import hub_pb2
from worker_agent.hub_client.send_queue import BATCH_BYTES, MergingSendQueue


async def sent(outbox: MergingSendQueue) -> list[bytes]:
    """All messages that the outbox writes for what is in it now."""
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)

    task = asyncio.create_task(outbox.send_all(write))
    await outbox.wait_empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return written


def report(assignment_id: int) -> bytes:
    started = hub_pb2.Started(assignment_id=assignment_id)
    return hub_pb2.WorkReports(started=[started]).SerializeToString()


async def test_reports_of_one_turn_become_one_message() -> None:
    outbox = MergingSendQueue(merge=True)
    for assignment_id in (1, 2, 3):
        outbox.put(report(assignment_id))
    (data,) = await sent(outbox)
    merged = hub_pb2.WorkReports.FromString(data)
    assert [started.assignment_id for started in merged.started] == [1, 2, 3]


async def test_messages_that_cannot_be_merged_are_sent_one_by_one() -> None:
    outbox = MergingSendQueue(merge=False)
    outbox.put(b"a")
    outbox.put(b"b")
    assert await sent(outbox) == [b"a", b"b"]


@pytest.mark.parametrize("size", [BATCH_BYTES, BATCH_BYTES + 1])
async def test_merged_message_has_a_bound_and_keeps_the_order(size: int) -> None:
    outbox = MergingSendQueue(merge=True)
    parts = [b"a", bytes(size), b"b", b"c"]
    for part in parts:
        outbox.put(part)
    assert await sent(outbox) == [b"a", bytes(size), b"bc"]


async def test_outbox_is_empty_only_once_everything_is_written() -> None:
    outbox = MergingSendQueue(merge=True)
    outbox.put(b"a")
    gate = asyncio.Event()

    async def write(_data: bytes) -> None:
        await gate.wait()

    task = asyncio.create_task(outbox.send_all(write))
    waiting = asyncio.create_task(outbox.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    await waiting
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
