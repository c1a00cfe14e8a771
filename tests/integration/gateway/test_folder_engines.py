"""Engines of model directories that agents send into the gateway's store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from gateway.hub import copies
from gateway.server import Gateway
from synergai.client.client import Client
from synergai.client.store import StoredEngine
from synergai.models.manifest import Package, pack
from synergai.v1 import common_pb2, hub_pb2
from tests.integration.gateway.conftest import FakeAgent, config_in
from tests.integration.gateway.test_gateway_store import (
    MODEL,
    TOKEN,
    TOKEN_KEY,
    folder,
    push,
    wanted,
)
from tests.waiting import until

NET = "net"


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return pack(folder(tmp_path / NET), NET, 1)


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[Client]:
    async with Client(gateway.address) as client:
        yield client


def agent_with(gateway: Gateway, worker_id: str, package: Package | None) -> FakeAgent:
    """Return an agent whose model directory has an engine that is too large for it, or none."""
    agent = FakeAgent(gateway.hub_address, worker_id)
    agent.register.backends.append("onnxruntime")
    del agent.register.engines[:]
    if package is not None:
        agent.register.engines.append(too_large(package))
    return agent


def too_large(package: Package) -> common_pb2.Engine:
    return common_pb2.Engine(
        name=NET,
        version="1",
        backend="onnxruntime",
        fault="it used 300 MB",
        too_large=True,
        digest=package.manifest.model_sha256,
    )


async def stored(client: Client) -> list[StoredEngine]:
    return list((await client.stored_engines()).engines)


async def fault(gateway: Gateway, wanted: str) -> None:
    """Wait until the gateway tells why an engine is not deployed."""
    await until(lambda: any(wanted in each.fault for each in gateway.app.deployments()), 0.05)


async def test_engine_that_is_too_large_for_its_worker_is_stored_and_placed_on_nobody(
    gateway: Gateway, client: Client, package: Package
) -> None:
    async with agent_with(gateway, "a", package) as a, agent_with(gateway, "b", None) as b:
        await a.until(lambda: a.asked == [NET])
        assert len(await a.send_engine(NET, package)) == 2
        [found] = await stored(client)
        assert (found.engine, found.version, found.pushed_by) == (NET, 1, "worker a")
        assert found.model_sha256 == package.manifest.model_sha256
        for agent in (a, b):
            await agent.until(lambda agent=agent: wanted(agent) == [])  # type: ignore[misc]  # bound now
            with pytest.raises(grpc.aio.AioRpcError):
                await agent.fetch(package.manifest.model_sha256)
        removed = common_pb2.Engine(
            name=NET, version="1", backend="onnxruntime", fault="it was removed from the worker"
        )
        change = hub_pb2.EngineChanged(engine=removed)
        await a.send(hub_pb2.AgentControl(engine_changed=change))
        await until(lambda: not gateway.app.storage.store.versions, 0.05)
        assert (a.asked, b.asked) == ([NET], [])


async def test_client_that_pushes_an_engine_replaces_its_copy(
    gateway: Gateway, client: Client, package: Package, tmp_path: Path
) -> None:
    async with agent_with(gateway, "a", package) as a, agent_with(gateway, "b", None) as b:
        await a.until(lambda: a.asked == [NET])
        await a.send_engine(NET, package)
        other = pack(folder(tmp_path / "other", b"another model"), NET, 1)
        await push(client, other)
        [found] = await stored(client)
        assert (found.model_sha256, found.placement) == (other.manifest.model_sha256, ())
        await b.until(lambda: wanted(b) == ["net/1"])


async def test_transfer_continues_where_the_connection_was_lost(
    gateway: Gateway, client: Client, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.deployment.folders.RETRY_S", 0.1)
    async with agent_with(gateway, "b", None):
        async with agent_with(gateway, "a", package) as a:
            await a.until(lambda: a.asked == [NET])
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await a.send_engine(NET, package, end=len(MODEL) - 1)
            assert "stopped to send it" in (failed.value.details() or "")
            await fault(gateway, "stopped to send it")
        assert await stored(client) == []
        async with agent_with(gateway, "a", package) as again:
            await again.until(lambda: again.asked == [NET])
            missing = await again.send_engine(NET, package)
            assert min(each.size - each.received for each in missing) == 1
            assert len(await stored(client)) == 1


async def test_engine_comes_from_another_worker_if_the_first_one_dies_while_it_sends(
    gateway: Gateway, client: Client, package: Package
) -> None:
    async with AsyncExitStack() as stack:
        a, b, c = (
            agent_with(gateway, *each) for each in (("a", package), ("b", package), ("c", None))
        )
        await stack.enter_async_context(a)
        await stack.enter_async_context(b)
        await stack.enter_async_context(c)
        await a.until(lambda: a.asked == [NET])
        sending = asyncio.create_task(a.send_engine(NET, package, end=len(MODEL) - 1, ends=False))
        await until(lambda: any(gateway.app.base.config.state.glob("uploads/*/*")), 0.05)
        sending.cancel()
        await a.disconnect()
        await b.until(lambda: b.asked == [NET])
        await b.send_engine(NET, package)
        assert [each.pushed_by for each in await stored(client)] == ["worker b"]


async def test_agent_sends_only_what_it_was_asked_for_and_offers(
    gateway: Gateway, client: Client, package: Package, tmp_path: Path
) -> None:
    other = pack(folder(tmp_path / "other", b"another model"), NET, 1)
    async with agent_with(gateway, "a", package) as a, agent_with(gateway, "b", package) as b:
        await a.until(lambda: a.asked == [NET])
        refusals = []
        for agent, engine, what in ((b, NET, package), (a, "other", package), (a, NET, other)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await agent.send_engine(engine, what)
            refusals.append(refused.value.code())
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert refusals == [denied, denied, grpc.StatusCode.UNAVAILABLE]
        a.connection_id = "guessed"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await a.send_engine(NET, package)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await fault(gateway, "another file of the engine now")
        assert await stored(client) == []


async def test_agent_has_to_send_the_content_that_it_claims_to_have(
    gateway: Gateway, client: Client, package: Package
) -> None:
    await client.push_engine(NET, 2, package.manifest.encode(), package.paths, place=["nobody"])
    async with agent_with(gateway, "a", package) as a, agent_with(gateway, "b", None):
        await a.until(lambda: a.asked == [NET])
        assert len(await a.send_engine(NET, package)) == 2


async def test_agent_that_stalls_is_given_up_early(
    gateway: Gateway, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "IDLE_S", 0.2)
    async with agent_with(gateway, "a", package) as a, agent_with(gateway, "b", None):
        await a.until(lambda: a.asked == [NET])
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await a.send_engine(NET, package, end=len(MODEL) - 1, ends=False)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        await fault(gateway, "stopped to send it")


async def test_reason_of_an_agent_that_cannot_send_is_told(
    gateway: Gateway, package: Package
) -> None:
    async with agent_with(gateway, "a", package) as a, agent_with(gateway, "b", None):
        await a.until(lambda: a.asked == [NET])
        with pytest.raises(grpc.aio.AioRpcError):
            await a.send_engine(NET, None, fault="net has several\x1b[2J models")
        await fault(gateway, "worker 'a' cannot send it: net has several?[2J models")


async def test_agent_that_does_not_answer_is_given_up(
    gateway: Gateway, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "WITHIN_S", 0.2)
    async with agent_with(gateway, "a", package), agent_with(gateway, "b", None):
        await fault(gateway, "worker 'a' has not sent it within 0.2 s")


async def test_engine_whose_file_the_access_table_does_not_allow_its_worker_is_not_stored(
    tmp_path: Path, package: Package
) -> None:
    table = tmp_path / "access.toml"
    table.write_text(
        '[[grants]]\nto = ["anonymous"]\nroles = ["operate", "observe"]\n'
        '[[workers]]\nid = "*"\nworker_class = "*"\n'
        f"{TOKEN_KEY}"
        f'[workers.digests]\nnet = ["{"0" * 64}"]\n'
    )
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(config_in(tmp_path, access=table)))
        agents = [agent_with(gateway, "a", package), agent_with(gateway, "b", None)]
        for agent in agents:
            agent.register.token = TOKEN
            await stack.enter_async_context(agent)
        [a, _] = agents
        await a.until(lambda: a.asked == [NET])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await a.send_engine(NET, package)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await fault(gateway, "the access table does not allow worker 'a' to serve its file")
