"""Streams of independent requests through a gateway."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import grpc
import pytest

from gateway.server import Gateway
from synergai.oip import inference_pb2 as oip
from synergai.v1 import hub_pb2, jobs_pb2
from tests import http2
from tests.calls import ReadableCall, read_message
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import Caller, Connect, FakeAgent, config_in, infer_request
from tests.message_fields import cancel_request
from tests.waiting import until


@both_servers
async def test_cancelled_request_stops_on_its_worker_and_the_stream_continues(
    agent: FakeAgent, caller: Caller
) -> None:
    agent.answer = agent.hold
    call = caller.oip.ModelStreamInfer(timeout=60)
    await call.write(infer_request(id="held"))
    await agent.until(lambda: len(agent.assignments) == 1)
    await call.write(cancel_request("held"))
    await agent.until(lambda: len(agent.stops) == 1)
    answer = (await read_message(call, oip.ModelStreamInferResponse)).infer_response
    assert (answer.id, answer.parameters["status"].string_param) == ("held", "CANCELLED")
    agent.answer = agent.complete
    await call.write(infer_request(id="next"))
    response = await read_message(call, oip.ModelStreamInferResponse)
    assert (response.infer_response.id, response.error_message) == ("next", "")
    call.cancel()


@both_servers
async def test_open_stream_does_not_delay_the_shutdown(
    gateway: Gateway, agent: FakeAgent, caller: Caller
) -> None:
    call = caller.oip.ModelStreamInfer(timeout=60)
    await call.write(infer_request(id="a"))
    assert (await read_message(call, oip.ModelStreamInferResponse)).infer_response.id == "a"
    gateway.stop()
    stopped = asyncio.create_task(gateway.wait_stopped())
    with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping"):
        await call.read()
    assert agent.stops == set()
    await stopped


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_idle_stream_keeps_neither_its_last_request_nor_the_response(
    agent: FakeAgent, caller: Caller, compression: grpc.Compression
) -> None:
    calls = [caller.oip.ModelStreamInfer(timeout=30, compression=compression) for _ in range(4)]
    large = infer_request(values=1 << 20)
    tracemalloc.start()
    try:
        for call in calls:
            await call.write(large)
            await call.read()
        agent.assignments.clear()
        await until(lambda: tracemalloc.get_traced_memory()[0] < large.ByteSize(), 0.01)
    finally:
        tracemalloc.stop()
        for call in calls:
            call.cancel()


async def test_idle_upload_does_not_keep_its_last_message(caller: Caller) -> None:
    size = 4 << 20
    uploads = [caller.jobs.Upload(timeout=30) for _ in range(2)]
    tracemalloc.start()
    try:
        for number, call in enumerate(uploads):
            for first in range(number + 1):
                inputs = [jobs_pb2.Input(name="x", request=bytes(size))]
                upload_id = f"inputs-{number}"
                message = jobs_pb2.UploadRequest(upload_id=upload_id, first=first, inputs=inputs)
                await call.write(message)
                await call.read()
        del inputs, message
        await until(lambda: tracemalloc.get_traced_memory()[0] < size / 2, 0.01)
    finally:
        tracemalloc.stop()
        for call in uploads:
            call.cancel()


async def read_to_the_end(call: ReadableCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def answer_together(agent: FakeAgent, queries: int) -> None:
    """Answer queries once all of them are in flight."""
    await agent.until(lambda: sum(each.count for each in agent.assignments) == queries)
    agent.answer = agent.complete
    for assignment in list(agent.assignments):
        await agent.complete(assignment)


@both_servers
async def test_stream_that_is_not_read_ends_and_others_go_on(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with Gateway(config_in(tmp_path, max_response_bytes=4 << 20)) as gateway:
        caller, agent = await connect(gateway)
        agent.answer = agent.hold
        unread = gateway.app.base.unread
        large = infer_request(values=1 << 18)
        call = caller.oip.ModelStreamInfer(timeout=60)
        for _ in range(8):
            await call.write(large)
        await answer_together(agent, 8)
        await until(lambda: "reads too slowly" in caplog.text, 0.01)
        response = await caller.oip.ModelInfer(large, timeout=60)
        assert len(response.raw_output_contents[0]) == 1 << 20
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_to_the_end(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "were not read" in (caught.value.details() or "")
        await until(lambda: not unread.bytes, 0.01)


async def test_client_that_reads_no_responses_of_calls_is_disconnected_and_others_go_on(
    tmp_path: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_in(tmp_path, max_response_bytes=4 << 20)
    async with Gateway(config) as gateway:
        caller, agent = await connect(gateway)
        large = agent.echoed(infer_request(values=1 << 18).SerializeToString())

        async def answer_at_length(assignment: hub_pb2.Assignment) -> None:
            responses = [large] * assignment.count
            await agent.end(assignment, done=assignment.count, responses=responses)

        agent.answer = answer_at_length
        unread = gateway.app.base.unread
        data = infer_request().SerializeToString()
        with http2.Http2Connection(gateway.address) as connection:
            for stream in range(1, 17, 2):
                call = http2.headers(stream, "/inference.GRPCInferenceService/ModelInfer")
                connection.send([call, http2.message(stream, data)])
            async with asyncio.timeout(30):
                while "reads too slowly" not in caplog.text:  # noqa: ASYNC110 - polls
                    await asyncio.sleep(0.01)
                while not connection.is_closed():  # noqa: ASYNC110 - polls
                    await asyncio.sleep(0.01)
        response = await caller.oip.ModelInfer(infer_request(), timeout=60)
        assert len(response.raw_output_contents[0]) == 1 << 20
        while unread.bytes:  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.01)
