"""Access to a running gateway: credentials, roles, and changes of the table."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from gateway.server import Gateway
from synergai.oip import inference_pb2 as oip
from tests.integration.gateway.conftest import (
    ECHO,
    Caller,
    FakeAgent,
    both_servers,
    config_in,
    infer_request,
)
from tests.waiting import until

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import PendingCall

pytestmark = both_servers

CODE = grpc.StatusCode


def table_text(*clients: str, roles: str = '"infer", "observe"') -> str:
    rows = [
        f'[[clients]]\nname = "{name}"\n'
        f'token_sha256 = "{hashlib.sha256(f"token of {name}".encode()).hexdigest()}"\n'
        f'[[grants]]\nto = ["{name}"]\nroles = [{roles}]\n'
        for name in clients
    ]
    return "\n".join(rows)


def bearer(name: str) -> grpc.aio.Metadata:
    return grpc.aio.Metadata(("authorization", f"Bearer token of {name}"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(table_text("a", "b"))
    return path


@pytest.fixture
async def gateway(tmp_path: Path, table: Path, grpc_server: str) -> AsyncIterator[Gateway]:
    async with Gateway(config_in(tmp_path, access=table, grpc_server=grpc_server)) as running:
        yield running


@pytest.fixture
async def served(gateway: Gateway) -> AsyncIterator[Caller]:
    """A client of a gateway that serves the engine."""
    caller = Caller(gateway.address)
    async with caller.channel, FakeAgent(gateway.hub_address):
        await until(lambda: list(gateway.app.fleet.catalogue.in_service()), 0.005)
        yield caller


async def code_of(call: PendingCall) -> grpc.StatusCode:
    try:
        await asyncio.wait_for(call, 30)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return CODE.OK


async def change(gateway: Gateway, table: Path, text: str) -> None:
    await asyncio.to_thread(table.write_text, text)
    assert gateway.app.entry.access is not None
    await gateway.app.entry.access.look()


async def test_stream_of_a_removed_client_gets_no_further_responses(
    served: Caller, gateway: Gateway, table: Path
) -> None:
    stream = served.oip.ModelStreamInfer(metadata=bearer("a"))
    await stream.write(infer_request(id="1"))
    answer = await stream.read()
    assert isinstance(answer, oip.ModelStreamInferResponse)
    assert not answer.error_message
    await change(gateway, table, table_text("b"))
    await stream.write(infer_request(id="2"))
    answer = await stream.read()
    assert isinstance(answer, oip.ModelStreamInferResponse)
    assert "have been revoked" in answer.error_message
    assert answer.infer_response.parameters["status"].string_param == "UNAUTHENTICATED"
    await stream.done_writing()
    again = served.oip.ModelReady(oip.ModelReadyRequest(name=ECHO), metadata=bearer("a"))
    assert await code_of(again) is CODE.UNAUTHENTICATED
    other = served.oip.ModelReady(oip.ModelReadyRequest(name=ECHO), metadata=bearer("b"))
    assert await code_of(other) is CODE.OK
