"""Queue of control messages."""

import asyncio

from worker_agent.hub_client.control_queue import ControlQueue


async def test_queue_is_empty_only_once_everything_is_written_in_order() -> None:
    queue = ControlQueue()
    queue.put(b"a")
    queue.put(b"b")
    gate = asyncio.Event()
    written: list[bytes] = []

    async def write(message: bytes) -> None:
        await gate.wait()
        written.append(message)

    task = asyncio.create_task(queue.send_all(write))
    waiting = asyncio.create_task(queue.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set()
    await waiting
    assert written == [b"a", b"b"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
