"""The gateway's protocol extensions, and errors for calls on the wrong port."""

from __future__ import annotations

import time

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from msgspec.structs import replace

from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.job_handler import JobHandler
from gateway.gateway_settings import GatewaySettings
from gateway.server import SERVICES, Gateway
from synergai.domain import Job
from synergai.oip import inference_pb2 as oip
from synergai.wire import rpc
from synergai.wire.writes import keep_status
from tests.calls import raw_unary
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import Caller, Connect, InferStream, infer_request

pytestmark = both_servers


UNARY = "/inference.GRPCInferenceService/ModelInfer"


def flag(name: str, *, value: bool = True) -> dict[str, oip.InferParameter]:
    return {name: oip.InferParameter(bool_param=value)}


async def read_all(call: InferStream, into: list[oip.ModelStreamInferResponse]) -> None:
    """Append a stream's messages to `into`, which keeps those before an error."""
    async for answer in call:
        into.append(answer)  # noqa: PERF401 - a comprehension would lose messages before an error


@pytest.mark.usefixtures("agent")
async def test_response_has_timings_on_request(caller: Caller) -> None:
    asking = infer_request(2, id="a", parameters=flag("synergai_timings"))
    began = time.monotonic()
    response = await caller.oip.ModelInfer(asking, timeout=30)
    passed_us = 1e6 * (time.monotonic() - began)
    timings = response.parameters
    assert timings["synergai_worker"].string_param == "w1"
    assert timings["synergai_configuration"].string_param == "threads=1"
    for part in ("queue", "transfer", "estimated"):
        assert timings[f"synergai_{part}_us"].WhichOneof("parameter_choice") == "int64_param"
    assert 0 < timings["synergai_transfer_us"].int64_param <= passed_us
    assert response.raw_output_contents == [b"\0\0\x80\x3f" * 2]
    silent = await caller.oip.ModelInfer(infer_request(), timeout=30)
    assert not silent.parameters


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("tenant", ["", "lab"])
async def test_tenant_comes_from_metadata_or_request_parameters(
    caller: Caller, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    submit = Dispatcher.submit

    def spy(
        self: Dispatcher,
        job: Job,
        handler: JobHandler,
        *,
        ready: int,
        done: tuple[tuple[int, int], ...] = (),
    ) -> None:
        seen.append(job.tenant)
        submit(self, job, handler, ready=ready, done=done)

    monkeypatch.setattr(Dispatcher, "submit", spy)
    parameters = {"synergai_tenant": oip.InferParameter(string_param=tenant)} if tenant else {}
    request = infer_request(parameters=parameters)
    metadata = (("synergai-tenant", "shop"),)
    await caller.oip.ModelInfer(request, metadata=metadata, timeout=30)
    call = caller.oip.ModelStreamInfer(iter([request]), metadata=metadata, timeout=30)
    assert [answer.error_message async for answer in call] == [""]
    call.cancel()
    await caller.oip.ModelInfer(infer_request(), timeout=30)
    assert seen == [tenant or "shop", tenant or "shop", ""]


@pytest.mark.usefixtures("agent")
async def test_stream_ends_at_the_first_error_on_request(caller: Caller) -> None:
    requests = [
        infer_request(id="good"),
        infer_request(model_name="unknown"),
        infer_request(id="late"),
    ]
    asks = (("triton_grpc_error", "true"),)
    # The last request may be written to a call that has ended.
    call = keep_status(caller.oip.ModelStreamInfer(iter(requests), metadata=asks, timeout=30))
    answers: list[oip.ModelStreamInferResponse] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(call, answers)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert all(not answer.error_message for answer in answers)


async def test_engine_without_a_worker_is_retryable(caller: Caller) -> None:
    failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=30))
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert int(dict(failure.trailing_metadata())["grpc-retry-pushback-ms"]) > 0


async def test_oversized_message_is_rejected_with_the_limit(
    config: GatewaySettings, connect: Connect
) -> None:
    small = replace(config, max_message_bytes=1 << 20)
    async with Gateway(small) as gateway:
        caller, _ = await connect(gateway)
        response = await caller.oip.ModelInfer(infer_request(200_000), timeout=30)
        assert response.raw_output_contents
        failure = await caller.failure(caller.oip.ModelInfer(infer_request(300_000), timeout=30))
    assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (failure.details() or "")


async def test_each_port_names_the_other_for_misdirected_calls(
    gateway: Gateway, caller: Caller
) -> None:
    async with grpc.aio.insecure_channel(gateway.hub_address) as channel:
        failure = await caller.failure(raw_unary(channel, UNARY)(b"", timeout=30))
    assert failure.code() is grpc.StatusCode.UNIMPLEMENTED
    port = gateway.address.rpartition(":")[2]
    assert failure.details() == f"this port is for agents; clients connect to port {port}"
    control = raw_unary(caller.channel, "/synergai.v1.Hub/Control")
    failure = await caller.failure(control(b"", timeout=30))
    assert f"port {gateway.hub_address.rpartition(':')[2]}" in (failure.details() or "")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_all_services_when_enabled(
    config: GatewaySettings, version: str
) -> None:
    async with (
        Gateway(replace(config, reflection=True)) as gateway,
        grpc.aio.insecure_channel(gateway.address, options=rpc.channel_options()) as channel,
    ):
        method: grpc.aio.StreamStreamMultiCallable[
            reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        ] = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            *(
                reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
                for service in SERVICES
            ),
        ]
        call = method(iter(requests), timeout=30)
        listed, *files = [answer async for answer in call]
        call.cancel()
    assert {each.name for each in listed.list_services_response.service} >= set(SERVICES)
    assert all(answer.file_descriptor_response.file_descriptor_proto for answer in files)


async def test_reflection_is_off_by_default(caller: Caller) -> None:
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    failure = await caller.failure(raw_unary(caller.channel, method)(b"", timeout=30))
    assert failure.code() is grpc.StatusCode.UNIMPLEMENTED
