"""Sources of a job's inputs."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from synergai.client.input_sources import IterableSource, read_messages
from synergai.client.upload_messages import InputEncoder
from synergai.v1.jobs_pb2 import UploadReceipt
from tests.unit.client.test_upload_messages import LIMIT, ROWS
from tests.waiting import turns


async def test_iterable_that_waits_takes_no_thread_from_others() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    go_on = threading.Event()

    def rows() -> Iterator[list[float]]:
        go_on.wait(30)
        yield [1.0, 2.0]

    async def upload() -> int:
        source = IterableSource(rows())
        encoder = InputEncoder(ROWS, (), LIMIT)
        messages = read_messages(source, encoder, UploadReceipt(), compare=True)
        return sum([message.count async for message in messages])

    uploading = asyncio.create_task(upload())
    await turns()
    async with asyncio.timeout(10):
        await asyncio.to_thread(go_on.set)
        assert await uploading == 1
