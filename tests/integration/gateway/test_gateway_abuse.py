"""Malformed messages, mass cancellations and floods of calls."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable

import grpc
import pytest

from gateway.server import Gateway
from synergai.oip import inference_pb2 as oip
from synergai.v1 import hub_pb2
from synergai.wire.limits import MAX_CALLS_PER_CONNECTION
from tests import http2
from tests.calls import raw_unary
from tests.gate.conversation import Conversation
from tests.integration.gateway.conftest import Caller, FakeAgent, InferStream, infer_request

METHODS = [
    *(f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelMetadata")),
    *(f"/synergai.v1.Jobs/{name}" for name in ("Submit", "List", "Watch")),
    "/synergai.v1.Fleet/GetDictionary",
]


ENHANCE_YOUR_CALM = 11
LIVE = "/inference.GRPCInferenceService/ServerLive"


def damaged(message: bytes, rng: random.Random) -> bytes:
    data = bytearray(message)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(3):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                del data[at:]
    return bytes(data)


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("seed", range(4))
async def test_damaged_message_is_never_a_fault_of_ours(caller: Caller, seed: int) -> None:
    rng = random.Random(seed)
    message = infer_request(3, id="a", model_version="1").SerializeToString()

    async def code_of(data: bytes) -> grpc.StatusCode:
        call = raw_unary(caller.channel, rng.choice(METHODS))(data, timeout=30)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()
        return grpc.StatusCode.OK

    codes = await asyncio.gather(*(code_of(damaged(message, rng)) for _ in range(200)))
    assert set(codes) <= {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
    }
    assert grpc.StatusCode.INVALID_ARGUMENT in codes


async def test_storm_of_cancellations_leaves_nothing_behind(
    agent: FakeAgent, caller: Caller, gateway: Gateway
) -> None:
    agent.answer = agent.hold
    calls = [caller.oip.ModelInfer(infer_request(), timeout=20) for _ in range(300)]
    await agent.until(lambda: len(agent.assignments) > 0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.wait_for(gateway.app.entry.admission.wait_idle(), 30)
    assert gateway.app.entry.admission.bytes == 0
    await caller.until(lambda worker: worker.state == 1)  # idle: every assignment has ended
    agent.answer = agent.complete
    assert (await caller.oip.ModelInfer(infer_request(), timeout=30)).raw_output_contents


FLOODS: dict[str, Callable[[], bytes]] = {
    "resets": lambda: 1500 * http2.reset(1),
    "pings": lambda: 1500 * http2.frame(http2.PING, 0, 0, bytes(8)),
    "unknown frames": lambda: 1500 * http2.frame(0xFA, 0, 0),
    "calls with too many fields": lambda: b"".join(
        http2.headers(stream, LIVE, block=b"\x40\x01x\x01v" + b"\xbe" * 600)
        for stream in range(1, 201, 2)
    ),
    "headers without end": lambda: (
        http2.headers(1, LIVE, ends=False)
        + 20 * http2.frame(http2.CONTINUATION, 0, 1, 3276 * b"\x00\x01x\x01v")
    ),
}


def answer_to(address: str, flood: bytes) -> tuple[int, str] | None:
    """Return code and text of the server's GOAWAY."""
    with Conversation(address) as client:
        client.send(flood)
        client.outcome(1, is_answered=True)
        return client.goaway


def answers_to_calls(address: str, *paths: str) -> list[str]:
    """Return the outcomes of calls on one connection."""
    with Conversation(address) as client:
        outcomes = []
        for stream, path in enumerate(paths):
            client.send(http2.headers(2 * stream + 1, path) + http2.message(2 * stream + 1, b""))
            outcomes.append(client.outcome(2 * stream + 1, is_answered=True))
        return outcomes


@pytest.mark.parametrize("port", ["clients", "agents"])
async def test_floods_of_frames_end_their_connections_with_a_reason_and_no_other(
    gateway: Gateway, caller: Caller, port: str
) -> None:
    address = gateway.address if port == "clients" else gateway.hub_address
    for flood in FLOODS.values():
        answer = await asyncio.to_thread(answer_to, address, flood())
        assert answer is not None
        code, text = answer
        assert code == ENHANCE_YOUR_CALM
        assert text
    await caller.oip.ServerLive(oip.ServerLiveRequest(), timeout=30)


@pytest.mark.usefixtures("agent")
async def test_calls_beyond_the_limit_of_a_connection_open_another(caller: Caller) -> None:
    calls = [caller.oip.ModelStreamInfer() for _ in range(MAX_CALLS_PER_CONNECTION + 10)]

    async def respond(call: InferStream) -> None:
        await call.write(infer_request())
        answer = await call.read()
        assert isinstance(answer, oip.ModelStreamInferResponse)
        assert not answer.error_message

    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*map(respond, calls))
    finally:
        for call in calls:
            call.cancel()


async def test_path_that_is_not_utf8_ends_its_call_and_no_other(
    gateway: Gateway,
    agent: FakeAgent,
    caller: Caller,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = asyncio.Event()

    async def answer_later(assignment: hub_pb2.Assignment) -> None:
        await answered.wait()
        await agent.complete(assignment)

    agent.answer = answer_later
    stream = caller.oip.ModelStreamInfer()
    await stream.write(infer_request())
    await agent.until(lambda: len(agent.assignments) > 0)
    async with asyncio.timeout(30):
        for address in (gateway.address, gateway.hub_address):
            paths = "/\udcff", "/grpc.health.v1.Health/Nothing"
            outcomes = await asyncio.to_thread(answers_to_calls, address, *paths)
            assert outcomes == ["status 12", "status 12"]
        answered.set()
        for _ in range(2):
            answer = await stream.read()
            assert isinstance(answer, oip.ModelStreamInferResponse)
            assert not answer.error_message
            await stream.write(infer_request())
        stream.cancel()
        newcomer = Caller(gateway.address)
        async with newcomer.channel, FakeAgent(gateway.hub_address, "w2"):
            await newcomer.workers(2)
        assert not agent.ended.is_set()
    gc.collect()  # asyncio would log an exception that was not retrieved
    assert not [each for each in caplog.records if each.levelno > logging.WARNING]
