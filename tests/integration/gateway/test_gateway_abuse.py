"""Malformed messages, mass cancellations and floods of calls."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import grpc
import pytest

from synergai.errors import InternalError
from synergai.oip import inference_pb2 as oip
from synergai.protocol.limits import MAX_CALLS_PER_CONNECTION
from tests import http2
from tests.calls import raw_unary

if TYPE_CHECKING:
    from gateway.server import Gateway
    from tests.integration.gateway.conftest import Caller, FakeAgent, InferStream
    from tests.message_fields import RequestFactory


METHODS = [
    *(f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelMetadata")),
    *(f"/synergai.v1.Jobs/{name}" for name in ("Submit", "List", "Watch", "Run")),
    "/synergai.v1.Fleet/PutDictionary",
]


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
async def test_damaged_message_is_never_a_fault_of_ours(
    caller: Caller, a_request: RequestFactory, seed: int
) -> None:
    rng = random.Random(seed)
    message = a_request(3, id="a", model_version="1").SerializeToString()

    async def code_of(data: bytes) -> grpc.StatusCode:
        call = raw_unary(caller.channel, rng.choice(METHODS))(data, timeout=5)
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
    agent: FakeAgent, caller: Caller, gateway: Gateway, a_request: RequestFactory
) -> None:
    agent.answer = agent.hold
    calls = [caller.oip.ModelInfer(a_request(), timeout=20) for _ in range(300)]
    await agent.until(lambda: len(agent.assignments) > 0)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await asyncio.wait_for(gateway.app.admission.wait_idle(), 5)
    assert gateway.app.admission.bytes == 0
    await caller.until(lambda worker: worker.state == 1)  # idle: every assignment has ended
    agent.answer = agent.complete
    assert (await caller.oip.ModelInfer(a_request(), timeout=5)).raw_output_contents


async def test_flood_of_reset_calls_is_refused_before_handlers_see_it(gateway: Gateway) -> None:
    flood = 10 * MAX_CALLS_PER_CONNECTION
    path = "/inference.GRPCInferenceService/ServerLive"
    with http2.Http2Connection(gateway.address) as connection:
        # The loop, which runs the handlers, is not running meanwhile.
        connection.send(
            http2.headers(stream, path) + http2.reset(stream) for stream in range(1, 2 * flood, 2)
        )
        refused = connection.count_resets(flood - MAX_CALLS_PER_CONNECTION - 1)
    assert refused >= flood - MAX_CALLS_PER_CONNECTION - 1


@pytest.mark.usefixtures("agent")
async def test_calls_beyond_the_limit_of_a_connection_open_another(
    caller: Caller, a_request: RequestFactory
) -> None:
    calls = [caller.oip.ModelStreamInfer() for _ in range(MAX_CALLS_PER_CONNECTION + 10)]

    async def respond(call: InferStream) -> None:
        await call.write(a_request())
        answer = await call.read()
        assert isinstance(answer, oip.ModelStreamInferResponse)
        assert not answer.error_message

    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*map(respond, calls))
    finally:
        for call in calls:
            call.cancel()


async def test_gateway_stops_if_its_grpc_server_ends_by_itself(gateway: Gateway) -> None:
    # grpcio's server accepts no further calls after a path that is not UTF-8.
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/\xff",
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    # A literal field without indexing: a zero, then name and value, each after its length.
    head = b"".join(
        b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
        for name, value in fields.items()
    )
    end_of_headers, headers, settings = 4, 1, 4
    _, port = gateway.address.split(":")
    _, writer = await asyncio.open_connection("127.0.0.1", int(port))
    try:
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        writer.write(bytes((0, 0, 0, settings, 0, 0, 0, 0, 0)))
        writer.write(bytes((0, 0, len(head), headers, end_of_headers, 0, 0, 0, 1)) + head)
        with pytest.raises(InternalError, match="a gRPC server ended"):
            await asyncio.wait_for(gateway.wait_stopped(), 30)
    finally:
        writer.close()
