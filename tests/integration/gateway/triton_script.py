"""An unmodified tritonclient, sync and asyncio, against the gateway named by the first argument.

It runs in a process of its own: its stubs and ours register the same protobuf package.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import time
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import TypeAlias

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

Answers: TypeAlias = queue.Queue[tuple[tritonclient.grpc.InferResult, InferenceServerException]]


def inputs(module: ModuleType, values: int) -> list[tritonclient.grpc.InferInput]:
    tensor = module.InferInput("x", [values], "FP32")
    tensor.set_data_from_numpy(np.arange(values, dtype=np.float32))
    return [tensor]


def check_status(status: str, failure: InferenceServerException) -> None:
    assert failure.status() == f"StatusCode.{status}", failure


def failure(call: Callable[[], object]) -> InferenceServerException:
    try:
        call()
    except InferenceServerException as failed:
        return failed
    raise AssertionError(call)


def control(address: str) -> None:
    """Model control, configuration, statistics and the index, as Triton's client has them."""
    with tritonclient.grpc.InferenceServerClient(address) as client:
        config = client.get_model_config("echo", as_json=True)["config"]
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["-1"]}]
        assert config["backend"] == "test"
        client.load_model("echo")
        index = client.get_model_repository_index()
        assert {(m.name, m.state) for m in index.models} == {("echo", "READY"), ("held", "READY")}
        client.unload_model("echo")
        assert not client.is_model_ready("echo")
        refused = failure(lambda: client.infer("echo", inputs(tritonclient.grpc, 1)))
        check_status("FAILED_PRECONDITION", refused)
        states = {m.name: m.state for m in client.get_model_repository_index().models}
        assert states["echo"] in ("UNLOADING", "UNAVAILABLE"), states
        client.load_model("echo")
        assert client.is_model_ready("echo")
        check_status("NOT_FOUND", failure(lambda: client.load_model("nobody")))
        with_config = failure(lambda: client.load_model("echo", config="{}"))
        check_status("UNIMPLEMENTED", with_config)
        asks = {"synergai_timings": True, "synergai_tenant": "lab"}
        result = client.infer("echo", inputs(tritonclient.grpc, 2), parameters=asks)
        told = result.get_response().parameters
        assert told["synergai_worker"].string_param == "w1"
        (statistics,) = client.get_inference_statistics("echo").model_stats
        assert statistics.inference_count >= 1
        assert statistics.inference_stats.success.count == statistics.inference_count
        assert statistics.inference_stats.queue.count == statistics.inference_count
        names = {m.name for m in client.get_inference_statistics().model_stats}
        assert names == {"echo", "held"}
        for call in (client.get_system_shared_memory_status, client.get_trace_settings):
            check_status("UNIMPLEMENTED", failure(call))


def stream_with_codes(address: str) -> None:
    """A stream that asks for status codes ends with that of its first error."""
    answers: Answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(address) as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)),
            headers={"triton_grpc_error": "true"},
        )
        client.async_stream_infer("nobody", inputs(tritonclient.grpc, 1))
        _, error = answers.get(timeout=30)
        assert "NOT_FOUND" in error.status(), error
        client.stop_stream()


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
        assert time.monotonic() - began < 10
    try:
        client.infer("nobody", inputs(tritonclient.grpc, 1))
    except InferenceServerException as failure:
        check_status("NOT_FOUND", failure)
    else:
        raise AssertionError
    answers: Answers = queue.Queue()
    client.async_infer(
        "echo", inputs(tritonclient.grpc, 2), lambda result, error: answers.put((result, error))
    )
    result, error = answers.get(timeout=30)
    assert error is None
    held = client.async_infer(
        "held", inputs(tritonclient.grpc, 1), lambda result, error: answers.put((result, error))
    )
    held.cancel()
    _, error = answers.get(timeout=30)
    check_status("CANCELLED", error)
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(20):
        client.async_stream_infer("echo", inputs(tritonclient.grpc, 3), request_id=str(number))
    client.async_stream_infer("nobody", inputs(tritonclient.grpc, 1))
    found = [answers.get(timeout=30) for _ in range(21)]
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
        await client.load_model("echo")
        assert (await client.get_model_config("echo")).config.name == "echo"
        assert (await client.get_inference_statistics("echo")).model_stats[0].name == "echo"
        assert len((await client.get_model_repository_index()).models) == 2
        task = asyncio.create_task(client.infer("held", inputs(tritonclient.grpc.aio, 1)))
        await asyncio.sleep(0.1)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError

        async def requests() -> AsyncIterator[dict[str, object]]:
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
    control(sys.argv[1])
    stream_with_codes(sys.argv[1])
    asyncio.run(aio(sys.argv[1]))
