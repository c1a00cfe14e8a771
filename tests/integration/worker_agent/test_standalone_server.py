"""The agent's own Open Inference Protocol server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import grpc
import numpy as np
import pytest

from synergai.oip import inference_pb2 as oip
from synergai.oip.inference_pb2_grpc import GRPCInferenceServiceStub
from synergai.protocol import rpc
from tests import http2
from tests.calls import raw_requests, raw_stream, raw_unary
from worker_agent.app import Agent
from worker_agent.settings import AgentSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from synergai.oip.inference_pb2_grpc import GRPCInferenceServiceAsyncStub
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import RawRequest
    from tests.message_fields import RequestFields
    from worker_agent.standalone.backend import AgentRequest

SERVICE = "inference.GRPCInferenceService"
SCRIPT = Path(__file__).with_name("triton_script.py")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
async def agent(models: Path, state: Path) -> AsyncIterator[Agent]:
    settings = AgentSettings(
        gateway="127.0.0.1:1", models=models, state=state, listen="127.0.0.1:0", drain_s=1.0
    )
    async with Agent(settings.to_config()) as agent:
        yield agent


@pytest.fixture
async def channel(agent: Agent) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(agent.address, options=rpc.channel_options()) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> GRPCInferenceServiceAsyncStub:
    return GRPCInferenceServiceStub(channel)


def request(
    values: Sequence[float] = (1, 2), engine: str = "twice", **fields: Unpack[RequestFields]
) -> oip.ModelInferRequest:
    array = np.array(values, np.float32).reshape(1, -1)
    tensor = oip.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=array.shape)
    usual: RequestFields = {"model_name": engine, "raw_input_contents": [array.tobytes()]}
    return oip.ModelInferRequest(inputs=[tensor], **(usual | fields))


def y_of(response: oip.ModelInferResponse) -> list[float]:
    values: list[float] = np.frombuffer(response.raw_output_contents[0], np.float32).tolist()
    return values


async def test_server_and_engines_describe_themselves(stub: GRPCInferenceServiceAsyncStub) -> None:
    assert (await stub.ServerLive(oip.ServerLiveRequest())).live
    assert (await stub.ServerReady(oip.ServerReadyRequest())).ready
    server = await stub.ServerMetadata(oip.ServerMetadataRequest())
    assert server.name == "synergai-agent"
    assert (await stub.ModelReady(oip.ModelReadyRequest(name="twice"))).ready
    assert not (await stub.ModelReady(oip.ModelReadyRequest(name="truncated"))).ready
    assert not (await stub.ModelReady(oip.ModelReadyRequest(name="unknown"))).ready
    model = await stub.ModelMetadata(oip.ModelMetadataRequest(name="twice"))
    assert (model.name, list(model.versions), model.platform) == ("twice", ["1"], "onnxruntime")
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [("x", "FP32", [-1, 2])]


async def test_inference_echoes_name_version_and_id(stub: GRPCInferenceServiceAsyncStub) -> None:
    response = await stub.ModelInfer(request([3, 4], id="7"))
    assert (response.model_name, response.model_version, response.id) == ("twice", "1", "7")
    assert y_of(response) == [6, 8]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (request([1, 2, 3]).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
        (request(model_version="2").SerializeToString(), grpc.StatusCode.NOT_FOUND),
        (request(engine="unknown").SerializeToString(), grpc.StatusCode.NOT_FOUND),
        (request(engine="truncated").SerializeToString(), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_failed_request_has_its_status_code(
    channel: grpc.aio.Channel, message: bytes, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw_unary(channel, f"/{SERVICE}/ModelInfer")(message, timeout=10)
    assert caught.value.code() is code


async def test_stream_responds_in_order_and_survives_errors(channel: grpc.aio.Channel) -> None:
    sent = [request([i, i]).SerializeToString() for i in range(100)]
    sent[10] = b"\xff\xff"
    sent[20] = request([1, 2, 3]).SerializeToString()
    sent[30] = request(engine="unknown").SerializeToString()
    stream = raw_requests(
        channel, f"/{SERVICE}/ModelStreamInfer", oip.ModelStreamInferResponse.FromString
    )(iter(sent), timeout=20)
    try:
        answers = [answer async for answer in stream]
    finally:
        stream.cancel()
    errors = {i: answer.error_message for i, answer in enumerate(answers) if answer.error_message}
    assert len(answers) == 100
    assert sorted(errors) == [10, 20, 30]
    assert "not a valid" in errors[10]
    assert "must have shape" in errors[20]
    assert errors[30] == "no worker serves engine 'unknown'"
    assert y_of(answers[99].infer_response) == [198, 198]


async def test_cancelled_stream_leaves_no_work(channel: grpc.aio.Channel, agent: Agent) -> None:
    stream = raw_stream(channel, f"/{SERVICE}/ModelStreamInfer")()
    for _ in range(50):
        await stream.write(request().SerializeToString())
    stream.cancel()
    agent.stop()
    await agent.wait_stopped()
    assert agent._workers[0].runner.is_idle


async def test_draining_agent_refuses_new_requests(
    stub: GRPCInferenceServiceAsyncStub, agent: Agent
) -> None:
    await stub.ModelInfer(request())
    agent.stop()
    await agent.wait_stopped()
    assert not (await stub.ServerReady(oip.ServerReadyRequest())).ready
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ModelInfer(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_internal_error_fails_only_its_request(
    agent: Agent, stub: GRPCInferenceServiceAsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent._standalone is not None
    backend = agent._standalone._backend
    begin = backend.begin

    def clumsy(raw: RawRequest[RequestHeader], budget_s: float | None, tenant: str) -> AgentRequest:
        if raw.parsed.message.id == "clumsy":
            raise ZeroDivisionError
        return begin(raw, budget_s, tenant)

    monkeypatch.setattr(backend, "begin", clumsy)
    stream = stub.ModelStreamInfer(iter([request(id="clumsy"), request()]), timeout=10)
    answers = [each async for each in stream]
    assert [bool(each.error_message) for each in answers] == [True, False]
    assert "ZeroDivision" not in answers[0].error_message


async def test_unmodified_tritonclient_profiles_and_controls_an_agent(agent: Agent) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), agent.address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def test_path_that_is_not_utf8_does_not_end_the_server(
    agent: Agent, stub: GRPCInferenceServiceAsyncStub, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stub.ModelStreamInfer()
    await stream.write(request())
    assert isinstance(await stream.read(), oip.ModelStreamInferResponse)
    with http2.Http2Connection(agent.address) as connection:
        connection.send([http2.headers(1, "/\udcff")])
        async with asyncio.timeout(30):
            while "it was replaced" not in caplog.text:  # noqa: ASYNC110 - polls the log
                await asyncio.sleep(0.05)
    assert (await stub.ModelInfer(request(), wait_for_ready=True, timeout=30)).raw_output_contents
    await stream.write(request())
    answer = await stream.read()
    assert isinstance(answer, oip.ModelStreamInferResponse)
    assert not answer.error_message
    stream.cancel()
