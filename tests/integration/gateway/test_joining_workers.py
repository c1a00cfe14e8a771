"""Agents at a gateway whose access table says which workers may join: honest and rogue ones."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from gateway.backup import back_up, restore
from gateway.entry.access.table import AllowedWorkers
from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.v1 import fleet_pb2, fleet_pb2_grpc, hub_pb2
from tests.integration.gateway.conftest import Caller, FakeAgent, NewAgent, described, infer_request
from tests.integration.gateway.test_gateway_tls import AGENT, CA, FILES

TOKEN, STRANGE = "t" * 32, "s" * 32
SHA256 = hashlib.sha256(TOKEN.encode()).hexdigest()
ROWS = (AllowedWorkers(id="w*", worker_class="test", token_sha256=SHA256),)
GRANT = '[[grants]]\nto = ["anonymous"]\nroles = ["observe"]\nengines = ["*"]\n'
TABLE = f'{GRANT}[[workers]]\nid = "edge-*"\ntoken_sha256 = "{SHA256}"\n'


@pytest.fixture
async def gateway(config: GatewaySettings) -> AsyncIterator[Gateway]:
    async with Gateway(config) as running:
        running.app.agents.hub.set_rules(ROWS)
        yield running


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The file of an access table that lets workers join whose names begin with edge-."""
    path = tmp_path / "access.toml"
    path.write_text(TABLE)
    return path


def presenting(agent: FakeAgent, token: str = TOKEN) -> FakeAgent:
    agent.register.token = token
    return agent


async def refused(agent: FakeAgent, code: grpc.StatusCode) -> str:
    """Check that an agent is refused with a code; return the reason."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(agent.connect(), 30)
    await agent.disconnect()
    assert caught.value.code() is code
    return caught.value.details() or ""


async def test_agent_without_a_token_is_told_what_to_do(new_agent: NewAgent) -> None:
    reason = await refused(new_agent("w1"), grpc.StatusCode.UNAUTHENTICATED)
    assert "synergai access token w1 --worker" in reason
    stranger = presenting(new_agent("stranger"))
    reason = await refused(stranger, grpc.StatusCode.PERMISSION_DENIED)
    assert "no row for worker 'stranger' of class 'test'" in reason
    other = presenting(new_agent("w1"))
    other.register.worker_class = "other"
    await refused(other, grpc.StatusCode.PERMISSION_DENIED)
    short = presenting(new_agent("w1"), "short")
    reason = await refused(short, grpc.StatusCode.INVALID_ARGUMENT)
    assert "token must have 32 to 256 characters" in reason


@pytest.mark.parametrize("instance", ["", "honest", "rogue"])
async def test_live_worker_is_not_replaced_by_one_without_its_token(
    caller: Caller,
    new_agent: NewAgent,
    instance: str,
) -> None:
    honest = presenting(new_agent("w1"))
    honest.register.instance = "honest"
    async with honest:
        rogue = presenting(new_agent("w1"), STRANGE)
        rogue.register.instance = instance
        await refused(rogue, grpc.StatusCode.UNAUTHENTICATED)
        await caller.oip.ModelInfer(infer_request(), timeout=30)
        assert not honest.gone
        assert honest.assignments


@pytest.mark.parametrize("instance", ["", "second"])
async def test_second_agent_with_name_and_token_of_a_connected_one_is_refused(
    caller: Caller, new_agent: NewAgent, instance: str
) -> None:
    first, second = presenting(new_agent("w1")), presenting(new_agent("w1"))
    first.register.instance, second.register.instance = "first", instance
    async with first:
        reason = await refused(second, grpc.StatusCode.ALREADY_EXISTS)
        assert "another agent is connected as 'w1'" in reason
        await caller.workers(1)
        assert not first.gone


async def test_worker_whose_row_is_removed_from_the_file_is_disconnected(
    config: GatewaySettings, table: Path, tmp_path: Path
) -> None:
    log = tmp_path / "audit.log"
    async with Gateway(replace(config, access=table, audit_log=log)) as gateway:
        agent = presenting(FakeAgent(gateway.hub_address, "edge-1"))
        async with agent:
            await asyncio.to_thread(table.write_text, GRANT)
            await asyncio.wait_for(agent.ended.wait(), 30)
            assert agent.code is grpc.StatusCode.PERMISSION_DENIED
        await refused(
            presenting(FakeAgent(gateway.hub_address, "edge-1")),
            grpc.StatusCode.PERMISSION_DENIED,
        )
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    keys = ("caller", "credential", "result")
    assert [entries[0][key] for key in keys] == ["edge-1", "token", "OK"]
    assert {each["result"] for each in entries[1:]} == {"PERMISSION_DENIED"}
    assert TOKEN not in log.read_text()


async def test_restored_gateway_and_another_one_accept_the_fleet(
    config: GatewaySettings, table: Path, tmp_path: Path
) -> None:
    config = replace(config, access=table)
    restored, other = tmp_path / "restored", tmp_path / "other"
    async with (
        Gateway(config) as gateway,
        presenting(FakeAgent(gateway.hub_address, "edge-1")),
    ):
        await asyncio.to_thread(back_up, config.state, tmp_path / "backup")
    await asyncio.to_thread(restore, restored, tmp_path / "backup")
    for state in (restored, other):
        async with (
            Gateway(replace(config, state=state)) as gateway,
            presenting(FakeAgent(gateway.hub_address, "edge-1")) as agent,
        ):
            assert not agent.gone
            impostor = presenting(FakeAgent(gateway.hub_address, "edge-1"), STRANGE)
            await refused(impostor, grpc.StatusCode.UNAUTHENTICATED)


async def test_job_of_a_worker_whose_row_disappears_resumes_elsewhere(
    gateway: Gateway, caller: Caller, new_agent: NewAgent
) -> None:
    first = presenting(new_agent("w1"))
    first.answer = first.hold
    async with first:
        job = await caller.submit()
        await first.until(lambda: bool(first.assignments))
        async with presenting(new_agent("w2")):
            gateway.app.agents.hub.set_rules((AllowedWorkers(id="w2", token_sha256=SHA256),))
            await asyncio.wait_for(first.ended.wait(), 30)
            assert first.code is grpc.StatusCode.PERMISSION_DENIED
            await caller.recorded(job.id, 10)


async def test_engines_beyond_the_row_are_ignored_and_shown(
    gateway: Gateway, caller: Caller, new_agent: NewAgent
) -> None:
    agent = presenting(new_agent("w1"))
    agent.register.engines.append(described("other"))
    async with agent:
        await caller.workers(1)
        gateway.app.fleet.catalogue.find("other")
        row = AllowedWorkers(id="w1", token_sha256=SHA256, engines=("ech*",))
        gateway.app.agents.hub.set_rules((row,))
        [worker] = await caller.workers(1)
        faults = {engine.name: engine.fault for engine in worker.engines}
        assert faults["echo"] == ""
        assert "access table does not allow" in faults["other"]
        gateway.app.agents.hub.set_rules(ROWS)
        [worker] = await caller.workers(1)
        assert [engine.fault for engine in worker.engines] == ["", ""]


async def test_certificate_is_good_for_its_own_worker_only(config: GatewaySettings) -> None:
    tls = {
        "tls_cert": FILES / "server.pem",
        "tls_key": FILES / "server.key",
        "tls_client_ca": CA,
    }
    async with Gateway(replace(config, **tls)) as gateway:
        # The name in the agent's certificate.
        row = AllowedWorkers(id="*", worker_class="test", certificate="{id}")
        gateway.app.agents.hub.set_rules((row,))
        rogue = FakeAgent(gateway.hub_address, "w1", AGENT)
        reason = await refused(rogue, grpc.StatusCode.UNAUTHENTICATED)
        assert "needs a certificate for 'w1'" in reason
        rogue = FakeAgent(gateway.hub_address, "localhost", AGENT)
        rogue.register.worker_class = "other"
        await refused(rogue, grpc.StatusCode.PERMISSION_DENIED)
        async with FakeAgent(gateway.hub_address, "localhost", AGENT) as agent:
            assert not agent.gone


async def test_agent_joins_by_the_token_in_its_file_and_returns_by_the_next_one(
    config: GatewaySettings, table: Path, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    (tmp_path / "models").mkdir()
    token_file.write_text(TOKEN)
    async with Gateway(replace(config, access=table)) as gateway:
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "synergai", "agent", "--gateway", gateway.hub_address),
            *("--models", str(tmp_path / "models"), "--state", str(tmp_path / "agent")),
            *("--worker-id", "edge-1", "--power", "none"),
            *("--token-file", str(token_file)),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with Caller(gateway.address).channel as channel, asyncio.timeout(60):
                fleet = fleet_pb2_grpc.FleetStub(channel)
                await joined(fleet, "edge-1")
                await asyncio.to_thread(
                    table.write_text,
                    TABLE.replace(SHA256, hashlib.sha256(STRANGE.encode()).hexdigest()),
                )
                await joined(fleet)
                await asyncio.to_thread(token_file.write_text, STRANGE)
                await joined(fleet, "edge-1")
        finally:
            agent.kill()
            await agent.wait()


async def joined(fleet: fleet_pb2_grpc.FleetAsyncStub, *expected: str) -> None:
    """Wait until exactly these workers are connected."""
    while True:
        answer = await fleet.ListWorkers(fleet_pb2.ListWorkersRequest())
        if [worker.id for worker in answer.workers] == list(expected):
            return
        await asyncio.sleep(0.05)


async def test_agent_of_the_gateways_own_process_needs_no_row(gateway: Gateway) -> None:
    register = FakeAgent(gateway.hub_address, "local").register

    async def requests() -> AsyncIterator[hub_pb2.AgentControl]:
        yield hub_pb2.AgentControl(register=register)
        await asyncio.Event().wait()

    responses = gateway.app.agents.hub.control(requests(), None)
    assert (await anext(responses)).registered.session
    await responses.aclose()
