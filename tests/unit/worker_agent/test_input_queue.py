"""Inputs that follow an assignment."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from synergai.v1.jobs_pb2 import Input
from tests.pulls import no_pulls
from worker_agent.runner.inputs import READ_AHEAD, InputQueue


async def test_inputs_that_are_read_slowly_do_not_delay_other_work() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def read(_url: str) -> bytes:
        reading.set()
        assert go_on.wait(30)
        return b""

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    inputs = InputQueue(read, no_pulls, lambda: None, READ_AHEAD)
    inputs.receive([Input(url="file:///a").SerializeToString()] * READ_AHEAD, ())
    async with asyncio.timeout(30):
        assert await asyncio.to_thread(reading.wait, 30)
    go_on.set()
    inputs.close()
