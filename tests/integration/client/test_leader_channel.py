"""A client of several gateways, of which one leads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

import synergai
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.wire.native.server import NativeServer
from synergai.wire.server_call import ServerCall
from tests.integration.client.conftest import FakeGateway

ALWAYS = 10**6
INPUTS: dict[str, NDArray[np.float32]] = {"x": np.ones(3, np.float32)}


class Refusing(grpc.GenericRpcHandler):
    """Refuses all calls, as a standby does."""

    def __init__(self) -> None:
        self.refused = 0

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(_requests: object, context: ServerCall) -> None:
            self.refused += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the leader is another one")

        return grpc.stream_stream_rpc_method_handler(refuse)


@pytest.fixture
async def standby() -> AsyncIterator[FakeGateway]:
    """A gateway that leads later."""
    standby = FakeGateway()
    standby.unavailable = ALWAYS
    standby.start()
    yield standby
    await standby.server.stop(0)


@pytest.fixture
async def client(gateway: FakeGateway, standby: FakeGateway) -> AsyncIterator[synergai.Client]:
    async with synergai.Client(f"{standby.address},{gateway.address}") as client:
        yield client


async def test_calls_go_to_the_leader_once_it_is_found(gateway: FakeGateway) -> None:
    handler, server = Refusing(), NativeServer(100, DEFAULT_MAX_MESSAGE_BYTES)
    address = server.bind("127.0.0.1:0")
    server.start((handler,))
    async with synergai.Client(f"{address},{gateway.address}") as client:
        for _ in range(3):
            assert (await client.infer("identity", INPUTS))["y"].size == 3
        job = await client.submit("identity", queries=10)
        assert (await job.wait()).queries_done == 10
    await server.stop(0)
    assert handler.refused == 1


async def test_gateway_that_cannot_be_reached_is_passed_over(
    gateway: FakeGateway, unreachable: str
) -> None:
    async with synergai.Client(f"{unreachable},{gateway.address}") as client:
        assert await client.workers()


async def test_job_is_waited_for_at_the_gateway_that_takes_over(
    client: synergai.Client, gateway: FakeGateway, standby: FakeGateway
) -> None:
    job = await client.submit("identity", queries=10)
    gateway.unavailable, standby.unavailable = ALWAYS, 0
    standby.jobs = gateway.jobs
    assert (await job.wait()).queries_done == 10


async def test_calls_outlast_a_takeover(gateway: FakeGateway, standby: FakeGateway) -> None:
    gateway.unavailable = 3
    async with synergai.Client(f"{standby.address},{gateway.address}", attempts=2) as client:
        assert (await client.submit("identity", queries=1)).id
    assert gateway.unavailable == 0


async def test_patience_with_gateways_none_of_which_leads_is_bounded(
    gateway: FakeGateway, standby: FakeGateway
) -> None:
    gateway.unavailable = ALWAYS
    target = f"{standby.address},{gateway.address}"
    async with synergai.Client(target, patience=0.0) as client:
        with pytest.raises(synergai.Unavailable, match="the gateway is stopping"):
            await client.infer("identity", INPUTS)
    async with synergai.Client(target, attempts=1) as client:
        with pytest.raises(synergai.Unavailable, match="the gateway is stopping"):
            await client.submit("identity", queries=1)


async def test_token_is_not_sent_in_the_clear_to_any_of_the_gateways() -> None:
    with pytest.raises(synergai.InvalidInput, match="sent to far:8001 without encryption"):
        synergai.Client("127.0.0.1:8001,far:8001", token="secret")
