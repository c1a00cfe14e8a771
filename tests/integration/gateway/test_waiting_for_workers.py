"""Requests for a known engine while no worker serves it, as when workers are started on demand."""

import asyncio
from pathlib import Path

import grpc
import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.client.client import Client
from synergai.models.manifest import pack
from tests.http1 import get
from tests.integration.gateway.conftest import Caller, FakeAgent, config_in, infer_request
from tests.integration.gateway.test_gateway_store import folder, push


@pytest.fixture
def config(tmp_path: Path) -> GatewaySettings:
    return config_in(tmp_path, worker_wait_s=60.0)


async def value(gateway: Gateway, name: str) -> float:
    page = (await get(gateway.http_address, "/metrics")).body.decode()
    [line] = [each for each in page.splitlines() if each.startswith(f"synergai_{name} ")]
    return float(line.split()[1])


async def test_request_counts_as_demand_and_is_answered_by_the_worker_that_comes(
    gateway: Gateway, caller: Caller
) -> None:
    answer = asyncio.ensure_future(caller.oip.ModelInfer(infer_request(), timeout=60))
    async with asyncio.timeout(30):
        while await value(gateway, "queue_depth") != 1:
            assert not answer.done()
            await asyncio.sleep(0.01)
        async with FakeAgent(gateway.hub_address):
            assert (await answer).model_name == "echo"
    assert await value(gateway, "unserved_requests_total") == 0


async def test_request_waits_for_an_engine_that_only_the_store_has(
    gateway: Gateway, caller: Caller, tmp_path: Path
) -> None:
    async with Client(gateway.address) as client:
        await push(client, pack(folder(tmp_path / "net"), "net", 1))
    answer = asyncio.ensure_future(
        caller.oip.ModelInfer(infer_request(model_name="net"), timeout=60)
    )
    async with asyncio.timeout(30):
        while await value(gateway, "queue_depth") != 1:
            assert not answer.done()
            await asyncio.sleep(0.01)
    answer.cancel()


async def test_refused_requests_are_counted(
    gateway: Gateway, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.app.fleet.catalogue, "_worker_wait_s", 0.0)
    failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=30))
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    monkeypatch.setattr(gateway.app.fleet.catalogue, "_worker_wait_s", 0.01)
    failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=30))
    assert failure.code() is grpc.StatusCode.UNAVAILABLE
    assert await value(gateway, "unserved_requests_total") == 2
    unknown = caller.oip.ModelInfer(infer_request(model_name="nobody"), timeout=30)
    assert (await caller.failure(unknown)).code() is grpc.StatusCode.NOT_FOUND
    assert await value(gateway, "unserved_requests_total") == 2
