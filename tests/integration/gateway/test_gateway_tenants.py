"""Clients and tenants of a running gateway: each tenant has its own quotas and jobs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gateway.server import Gateway
from synergai.oip import inference_pb2 as oip
from tests.http1 import fetch
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import Caller, FakeAgent, config_in, infer_request
from tests.waiting import until

pytestmark = both_servers

CODE = grpc.StatusCode
QUOTAS = {
    "rate": "requests_per_s = 0.001",
    "bytes": "bytes_per_s = 0.001",
    "jobs": "unfinished_jobs = 1\nqueries_per_job = 10",
    "slow": "max_priority = 3",
    "free": "",
}
"""Tenants, each of one client of the same name, and their quotas."""


def table_text(quotas: dict[str, str]) -> str:
    return "\n".join(
        f'[[clients]]\nname = "{name}"\n'
        f'token_sha256 = "{hashlib.sha256(f"token of {name}".encode()).hexdigest()}"\n'
        f'[[grants]]\nto = ["{name}"]\nroles = ["infer", "submit", "observe"]\n'
        f"[tenants.{name}]\n{quota}\n"
        for name, quota in quotas.items()
    )


def bearer(name: str) -> grpc.aio.Metadata:
    return grpc.aio.Metadata(("authorization", f"Bearer token of {name}"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(table_text(QUOTAS))
    return path


@pytest.fixture
async def gateway(tmp_path: Path, table: Path) -> AsyncIterator[Gateway]:
    async with Gateway(config_in(tmp_path, access=table)) as running:
        yield running


@pytest.fixture
async def agent(gateway: Gateway) -> AsyncIterator[FakeAgent]:
    async with FakeAgent(gateway.hub_address) as agent:
        await until(lambda: list(gateway.app.fleet.catalogue.in_service()), 0.005)
        yield agent


@pytest.fixture
async def caller(gateway: Gateway, agent: FakeAgent) -> AsyncIterator[Caller]:  # noqa: ARG001 - serves the engine
    caller = Caller(gateway.address)
    async with caller.channel:
        yield caller


async def change(gateway: Gateway, table: Path, quotas: dict[str, str]) -> None:
    await asyncio.to_thread(table.write_text, table_text(quotas))
    assert gateway.app.entry.access is not None
    await gateway.app.entry.access.look()


def post_request(gateway: Gateway, tenant: str) -> tuple[int, str | None]:
    """Send a request over HTTP; return status and the header ``retry-after``."""
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}'
    token = {"authorization": f"Bearer token of {tenant}"}
    answer = fetch(gateway.http_address, "/v2/models/echo/infer", body, token)
    return answer.status, answer.headers.get("retry-after")


def pushback_ms(error: grpc.aio.AioRpcError) -> int:
    return int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])


@pytest.mark.parametrize(
    ("tenant", "quota"), [("rate", "requests_per_s"), ("bytes", "bytes_per_s")]
)
async def test_requests_beyond_a_rate_are_refused_with_the_time_to_wait(
    caller: Caller, gateway: Gateway, tenant: str, quota: str
) -> None:
    infer = caller.oip.ModelInfer
    await infer(infer_request(), metadata=bearer(tenant))
    error = await caller.failure(infer(infer_request(), metadata=bearer(tenant)))
    assert error.code() is CODE.RESOURCE_EXHAUSTED
    assert f"tenant '{tenant}' has used up its quota {quota} = 0.001" in (error.details() or "")
    assert pushback_ms(error) >= 900_000
    status, retry_after = await asyncio.to_thread(post_request, gateway, tenant)
    assert status == 429
    assert int(retry_after or 0) >= 900
    assert await asyncio.to_thread(post_request, gateway, "free") == (200, None)
    await infer(infer_request(), metadata=bearer("free"))
    assert gateway.app.entry.admission.rejections[tenant, quota] == 2


async def test_messages_of_a_stream_are_refused_one_by_one(caller: Caller) -> None:
    stream = caller.oip.ModelStreamInfer(metadata=bearer("rate"))
    for number in range(3):
        await stream.write(infer_request(id=str(number)))
    await stream.done_writing()
    answers = {answer.infer_response.id: answer async for answer in stream}
    assert sorted(answers) == ["0", "1", "2"]
    refused = [answer for answer in answers.values() if answer.error_message]
    assert len(refused) == 2
    for answer in refused:
        assert "requests_per_s" in answer.error_message
        assert answer.infer_response.parameters["status"].string_param == "RESOURCE_EXHAUSTED"


async def test_stream_of_a_removed_client_gets_no_further_responses(
    caller: Caller, gateway: Gateway, table: Path
) -> None:
    stream = caller.oip.ModelStreamInfer(metadata=bearer("free"))
    answers = []
    for number in range(2):
        await stream.write(infer_request(id=str(number)))
        answer = await stream.read()
        assert isinstance(answer, oip.ModelStreamInferResponse)
        answers.append(answer)
        await change(gateway, table, {name: QUOTAS[name] for name in QUOTAS if name != "free"})
    await stream.done_writing()
    assert not answers[0].error_message
    assert "have been revoked" in answers[1].error_message
    assert answers[1].infer_response.parameters["status"].string_param == "UNAUTHENTICATED"
    ready = oip.ModelReadyRequest(name="echo")
    error = await caller.failure(caller.oip.ModelReady(ready, metadata=bearer("free")))
    assert error.code() is CODE.UNAUTHENTICATED
    await caller.oip.ModelReady(ready, metadata=bearer("rate"))
