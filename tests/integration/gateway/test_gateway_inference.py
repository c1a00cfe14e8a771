"""The Open Inference Protocol through a gateway, with an echo agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2

from synergai.core.explanations import Explanation
from synergai.oip import inference_pb2 as oip
from synergai.oip import repository_pb2
from synergai.v1 import fleet_pb2, hub_pb2
from tests.calls import raw_requests, raw_unary, read_message
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import Caller, FakeAgent, InferStream, infer_request

pytestmark = both_servers


HEALTH = "/grpc.health.v1.Health/Check"


def parameter(**value: int) -> dict[str, oip.InferParameter]:
    return {name: oip.InferParameter(int64_param=number) for name, number in value.items()}


async def test_request_is_forwarded_unchanged(agent: FakeAgent, caller: Caller) -> None:
    data = infer_request().SerializeToString() + b"\xf8\x07\x01"  # a field that our proto lacks
    await raw_unary(caller.channel, "/inference.GRPCInferenceService/ModelInfer")(data, timeout=30)
    assert agent.assignments[0].requests == [data]


async def test_every_request_of_a_burst_gets_the_gateways_own_error(caller: Caller) -> None:
    unknown = infer_request(model_name="unknown")
    burst = [caller.failure(caller.oip.ModelInfer(unknown, timeout=30)) for _ in range(1000)]
    codes = {failure.code() for failure in await asyncio.gather(*burst)}
    assert codes == {grpc.StatusCode.NOT_FOUND}


async def test_every_error_of_a_request_has_its_id(
    agent: FakeAgent, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    infer, unknown = caller.oip.ModelInfer, infer_request(model_name="unknown")
    agent.answer = partial(agent.end, outcome=hub_pb2.OUTCOME_FAILED)

    async def failed(request: oip.ModelInferRequest, *metadata: tuple[str, str]) -> str:
        failure = await caller.failure(infer(request, timeout=30, metadata=metadata))
        return str(dict(failure.trailing_metadata() or ())["request-id"])

    refused, crashed = await failed(unknown), await failed(infer_request())
    assert refused != crashed
    assert f"request {crashed}" in caplog.text
    assert await failed(unknown, ("request-id", "frame-7")) == "frame-7"
    assert await failed(unknown, ("request-id", "two words")) not in ("two words", refused)


async def explained(caller: Caller, request_id: str) -> Explanation:
    answer = await caller.fleet.Explain(fleet_pb2.ExplainRequest(id=request_id))
    return msgspec.json.decode(answer.json, type=Explanation)


async def test_late_request_is_explained_by_what_ran_ahead_of_it(
    agent: FakeAgent, caller: Caller
) -> None:
    agent.answer = agent.hold
    ahead = caller.oip.ModelInfer(infer_request(id="ahead"), timeout=30)
    await agent.until(lambda: len(agent.assignments) == 1)
    waits = infer_request(id="frame-7", parameters=parameter(timeout=300_000))
    failure = await caller.failure(caller.oip.ModelInfer(waits, timeout=30))
    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    found = await explained(caller, "frame-7")
    made = dict(failure.trailing_metadata() or ())["request-id"]
    assert (found.id, found.state) == (made, "expired")
    assert "which ran" in " ".join(found.sentences)
    ahead.cancel()


@pytest.mark.usefixtures("agent")
async def test_refused_request_is_explained_by_its_refusal(caller: Caller) -> None:
    failure = await caller.failure(
        caller.oip.ModelInfer(infer_request(model_version="7"), timeout=30)
    )
    found = await explained(caller, str(dict(failure.trailing_metadata() or ())["request-id"]))
    assert found.sentences == (f"Refused: {failure.details()}.",)


async def test_explanation_of_an_unknown_id_says_how_long_ids_are_kept(caller: Caller) -> None:
    unknown = caller.fleet.Explain(fleet_pb2.ExplainRequest(id="nobody"))
    failure = await caller.failure(unknown)
    assert failure.code() is grpc.StatusCode.NOT_FOUND
    assert "'nobody': until it restarts, the gateway keeps the last 2,000 requests" in (
        failure.details() or ""
    )


async def test_failed_response_of_a_stream_has_the_id_of_its_request(caller: Caller) -> None:
    call = caller.oip.ModelStreamInfer(timeout=60)
    await call.write(infer_request(model_name="unknown", id="a"))
    answer = (await read_message(call, oip.ModelStreamInferResponse)).infer_response
    assert answer.id == "a"
    assert answer.parameters["request-id"].string_param.startswith("r")
    call.cancel()


@pytest.mark.usefixtures("agent")
async def test_server_and_engine_describe_themselves(caller: Caller) -> None:
    assert (await caller.oip.ServerLive(oip.ServerLiveRequest())).live
    assert (await caller.oip.ServerReady(oip.ServerReadyRequest())).ready
    assert (await caller.oip.ModelReady(oip.ModelReadyRequest(name="echo"))).ready
    assert not (await caller.oip.ModelReady(oip.ModelReadyRequest(name="other"))).ready
    assert not (await caller.oip.ModelReady(oip.ModelReadyRequest(name="echo", version="9"))).ready
    server = await caller.oip.ServerMetadata(oip.ServerMetadataRequest())
    assert (server.name, "schedule_policy" in server.extensions) == ("synergai", True)
    engine = await caller.oip.ModelMetadata(oip.ModelMetadataRequest(name="echo"))
    assert (engine.name, list(engine.versions), engine.platform) == ("echo", ["1"], "test")
    assert [(t.name, t.datatype, list(t.shape)) for t in engine.inputs] == [("x", "FP32", [-1])]


METHODS = {
    "inference.GRPCInferenceService": (
        "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer ModelConfig "
        "ModelStatistics RepositoryIndex RepositoryModelLoad RepositoryModelUnload"
    ),
    "synergai.v1.Jobs": "Submit Watch Get List Cancel Results",
    "synergai.v1.Fleet": "ListWorkers GetDictionary ForgetEngine",
    "grpc.health.v1.Health": "Check Watch",
}


async def test_malformed_message_is_invalid_argument_to_every_method(caller: Caller) -> None:
    for service, names in METHODS.items():
        for name in names.split():
            call = raw_unary(caller.channel, f"/{service}/{name}")(b"\x08", timeout=30)
            failure = await caller.failure(call)
            assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert "is not a valid" in (failure.details() or ""), name


async def test_clients_deadline_ends_the_request_and_stops_its_work(
    agent: FakeAgent, caller: Caller
) -> None:
    agent.answer = agent.hold
    failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=2))
    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await agent.until(lambda: len(agent.stops) == len(agent.assignments) == 1)


async def test_worker_failure_is_reported_to_the_client_by_id_only(
    agent: FakeAgent, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(assignment: hub_pb2.Assignment) -> None:
        await agent.end(
            assignment,
            outcome=hub_pb2.OUTCOME_FAILED,
            fault=hub_pb2.FAULT_HOST_DIED,
            detail="Traceback in /secret/path",
        )

    agent.answer = crash
    failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=30))
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert "secret" not in (failure.details() or "")
    assert "secret" in caplog.text


async def answers_of(call: InferStream, count: int) -> list[oip.ModelStreamInferResponse]:
    found = []
    try:
        async for answer in call:
            found.append(answer)
            if len(found) == count:
                break
    finally:
        call.cancel()
    return found


@pytest.mark.usefixtures("agent")
async def test_stream_messages_succeed_or_fail_independently(caller: Caller) -> None:
    good = [infer_request(n + 1, id=f"good-{n}").SerializeToString() for n in range(100)]
    bad = infer_request(id="bad", model_name="unknown").SerializeToString()

    async def messages() -> AsyncIterator[bytes]:
        for number, data in enumerate(good):
            if number == 50:
                yield bad
                yield b"\x08"
            yield data

    call = raw_requests(
        caller.channel,
        "/inference.GRPCInferenceService/ModelStreamInfer",
        oip.ModelStreamInferResponse.FromString,
    )(messages(), timeout=60)
    answers = [answer async for answer in call]
    call.cancel()
    failed = [a for a in answers if a.error_message]
    assert {a.infer_response.id: a.infer_response.raw_output_contents for a in answers} == {
        **{f"good-{n}": [b"\0\0\x80\x3f" * (n + 1)] for n in range(100)},
        "bad": [],
        "": [],
    }
    assert len(failed) == 2
    assert any("not a valid inference.ModelInferRequest" in a.error_message for a in failed)


async def test_stream_responds_out_of_order(agent: FakeAgent, caller: Caller) -> None:
    first_may_go = asyncio.Event()

    async def slow_first(assignment: hub_pb2.Assignment) -> None:
        if b"first" in assignment.requests[0]:
            await first_may_go.wait()
        await agent.complete(assignment)

    agent.answer = slow_first
    call = caller.oip.ModelStreamInfer(timeout=60)
    await call.write(infer_request(id="first"))
    await call.write(infer_request(id="second"))
    assert (await read_message(call, oip.ModelStreamInferResponse)).infer_response.id == "second"
    first_may_go.set()
    assert (await read_message(call, oip.ModelStreamInferResponse)).infer_response.id == "first"
    call.cancel()


@pytest.mark.usefixtures("agent")
async def test_stream_marks_the_final_response_on_request(caller: Caller) -> None:
    wants_final = {"triton_enable_empty_final_response": oip.InferParameter(bool_param=True)}
    call = caller.oip.ModelStreamInfer(iter([infer_request(parameters=wants_final)]), timeout=30)
    (answer,) = await answers_of(call, 1)
    assert answer.infer_response.parameters["triton_final_response"].bool_param
    assert answer.infer_response.raw_output_contents == [b"\0\0\x80\x3f"]


@pytest.mark.usefixtures("agent")
async def test_health_covers_the_gateway_and_each_engine(caller: Caller) -> None:
    async def check(service: str) -> int:
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        answer = await raw_unary(caller.channel, HEALTH)(request)
        status: int = health_pb2.HealthCheckResponse.FromString(answer).status
        return status

    assert await check("") == await check("echo") == health_pb2.HealthCheckResponse.SERVING
    call = raw_unary(caller.channel, HEALTH)(
        health_pb2.HealthCheckRequest(service="unknown").SerializeToString()
    )
    assert (await caller.failure(call)).code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.usefixtures("agent")
async def test_health_watcher_is_notified_when_an_engine_is_unloaded(caller: Caller) -> None:
    watch: grpc.aio.UnaryStreamMultiCallable[bytes, health_pb2.HealthCheckResponse]
    watch = caller.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    request = health_pb2.HealthCheckRequest(service="echo").SerializeToString()
    call = watch(request, timeout=60)
    first = await read_message(call, health_pb2.HealthCheckResponse)
    assert first.status == health_pb2.HealthCheckResponse.SERVING
    await caller.oip.RepositoryModelUnload(
        repository_pb2.RepositoryModelUnloadRequest(model_name="echo")
    )
    second = await read_message(call, health_pb2.HealthCheckResponse)
    assert second.status == health_pb2.HealthCheckResponse.NOT_SERVING
    call.cancel()
