"""An unmodified tritonclient, sync and asyncio, against the gateway named by the first argument.

It runs in a process of its own: its stubs and ours register the same protobuf package.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import time
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException


def inputs(module: Any, values: int) -> list[Any]:
    tensor = module.InferInput("x", [values], "FP32")
    tensor.set_data_from_numpy(np.arange(values, dtype=np.float32))
    return [tensor]


def check_status(status: str, failure: InferenceServerException) -> None:
    assert failure.status() == f"StatusCode.{status}", failure


def sync(address: str) -> None:
    client = tritonclient.grpc.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.get_server_metadata().name == "synergai"
    assert client.get_model_metadata("echo").inputs[0].name == "x"
    result = client.infer("echo", inputs(tritonclient.grpc, 5), request_id="a", priority=1)
    assert result.get_response().id == "a"
    np.testing.assert_array_equal(result.as_numpy("y"), np.arange(5, dtype=np.float32))
    for options, status in (
        ({"client_timeout": 0.2}, "DEADLINE_EXCEEDED"),
        ({"timeout": 200_000}, "DEADLINE_EXCEEDED"),
    ):
        began = time.monotonic()
        try:
            client.infer("held", inputs(tritonclient.grpc, 1), **options)
        except InferenceServerException as failure:
            check_status(status, failure)
        else:
            raise AssertionError(options)
        assert time.monotonic() - began < 2
    try:
        client.infer("nobody", inputs(tritonclient.grpc, 1))
    except InferenceServerException as failure:
        check_status("NOT_FOUND", failure)
    else:
        raise AssertionError
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer(
        "echo", inputs(tritonclient.grpc, 2), lambda result, error: answers.put((result, error))
    )
    result, error = answers.get(timeout=5)
    assert error is None
    held = client.async_infer(
        "held", inputs(tritonclient.grpc, 1), lambda result, error: answers.put((result, error))
    )
    held.cancel()
    _, error = answers.get(timeout=5)
    check_status("CANCELLED", error)
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(20):
        client.async_stream_infer("echo", inputs(tritonclient.grpc, 3), request_id=str(number))
    client.async_stream_infer("nobody", inputs(tritonclient.grpc, 1))
    found = [answers.get(timeout=5) for _ in range(21)]
    client.stop_stream()
    assert sum(error is not None for _, error in found) == 1
    ids = {result.get_response().id for result, error in found if error is None}
    assert ids == {str(number) for number in range(20)}
    client.close()


async def aio(address: str) -> None:
    async with tritonclient.grpc.aio.InferenceServerClient(address) as client:
        assert await client.is_server_live()
        result = await client.infer("echo", inputs(tritonclient.grpc.aio, 4))
        np.testing.assert_array_equal(result.as_numpy("y"), np.arange(4, dtype=np.float32))
        for options in ({"client_timeout": 0.2}, {"timeout": 200_000}):
            try:
                await client.infer("held", inputs(tritonclient.grpc.aio, 1), **options)
            except InferenceServerException as failure:
                check_status("DEADLINE_EXCEEDED", failure)
            else:
                raise AssertionError(options)
        task = asyncio.create_task(client.infer("held", inputs(tritonclient.grpc.aio, 1)))
        await asyncio.sleep(0.1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError

        async def requests() -> Any:
            for number in range(10):
                yield {
                    "model_name": "echo",
                    "inputs": inputs(tritonclient.grpc.aio, 2),
                    "request_id": str(number),
                }

        ids = set()
        async for result, error in client.stream_infer(requests()):
            assert error is None
            ids.add(result.get_response().id)
        assert ids == {str(number) for number in range(10)}


if __name__ == "__main__":
    sync(sys.argv[1])
    asyncio.run(aio(sys.argv[1]))
