"""Agents at a gateway whose access table says which workers may join: honest and rogue ones."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from gateway.entry.access.table import AllowedWorkers
from gateway.entry.access.workers import ENROLMENTS_FILE, EnrolmentStore
from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.runtime.files import StateDamaged
from synergai.v1 import fleet_pb2, fleet_pb2_grpc, hub_pb2
from tests.integration.gateway.conftest import Caller, FakeAgent, NewAgent, described, infer_request
from tests.integration.gateway.test_gateway_tls import AGENT, CA, FILES
from worker_agent.hub_client.identity import SECRET_FILE

SECRET = "s" * 32
ROWS = (AllowedWorkers(id="w*", worker_class="test"),)


@pytest.fixture
async def gateway(config: GatewaySettings) -> AsyncIterator[Gateway]:
    async with Gateway(config) as running:
        running.app.agents.hub.set_rules(ROWS)
        yield running


def token_for(config: GatewaySettings, worker_id: str = "") -> str:
    now = time.time()
    store = EnrolmentStore(config.state)
    return store.issue(worker_id, "", now + 600, now)


def with_proof(agent: FakeAgent, token: str = "", secret: str = SECRET) -> FakeAgent:
    agent.register.secret, agent.register.enrolment_token = secret, token
    return agent


async def refused(agent: FakeAgent, code: grpc.StatusCode) -> str:
    """Check that an agent is refused with a code; return the reason."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(agent.connect(), 30)
    await agent.disconnect()
    assert caught.value.code() is code
    return caught.value.details() or ""


async def test_agent_without_enrolment_is_told_what_to_do(new_agent: NewAgent) -> None:
    # An earlier agent sends neither a secret nor a token.
    reason = await refused(new_agent("w1"), grpc.StatusCode.UNAUTHENTICATED)
    assert "synergai gateway enroll" in reason
    reason = await refused(new_agent("stranger"), grpc.StatusCode.PERMISSION_DENIED)
    assert "no row for worker 'stranger' of class 'test'" in reason


@pytest.mark.parametrize("instance", ["", "honest", "rogue"])
async def test_live_worker_is_not_replaced_by_one_without_its_secret(
    config: GatewaySettings,
    caller: Caller,
    new_agent: NewAgent,
    instance: str,
) -> None:
    honest = with_proof(new_agent("w1"), token_for(config))
    honest.register.instance = "honest"
    async with honest:
        rogue = with_proof(new_agent("w1"), token_for(config), secret="r" * 32)
        rogue.register.instance = instance
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rogue.connect()
        await rogue.disconnect()
        assert caught.value.code().name in ("UNAUTHENTICATED", "ALREADY_EXISTS")
        await caller.oip.ModelInfer(infer_request(), timeout=30)
        assert not honest.gone
        assert honest.assignments
    await caller.workers(0)
    # Its token was not enough for an enrolled id either.
    reason = await refused(
        with_proof(new_agent("w1"), token_for(config), secret="r" * 32),
        grpc.StatusCode.UNAUTHENTICATED,
    )
    assert "was enrolled before" in reason


async def test_revoked_worker_is_disconnected(
    config: GatewaySettings, caller: Caller, new_agent: NewAgent
) -> None:
    async with with_proof(new_agent("w1"), token_for(config)) as agent:
        await caller.workers(1)
        store = EnrolmentStore(config.state)
        store.revoke("w1", time.time())
        await asyncio.wait_for(agent.ended.wait(), 30)
        assert agent.code is grpc.StatusCode.UNAUTHENTICATED
    await caller.workers(0)


async def test_job_of_a_worker_whose_row_disappears_resumes_elsewhere(
    config: GatewaySettings, gateway: Gateway, caller: Caller, new_agent: NewAgent
) -> None:
    first = with_proof(new_agent("w1"), token_for(config))
    first.answer = first.hold
    async with first:
        job = await caller.submit()
        await first.until(lambda: bool(first.assignments))
        async with with_proof(new_agent("w2"), token_for(config)):
            gateway.app.agents.hub.set_rules((AllowedWorkers(id="w2"),))
            await asyncio.wait_for(first.ended.wait(), 30)
            assert first.code is grpc.StatusCode.PERMISSION_DENIED
            await caller.recorded(job.id, 10)


async def test_engines_beyond_the_row_are_ignored_and_shown(
    config: GatewaySettings, gateway: Gateway, caller: Caller, new_agent: NewAgent
) -> None:
    agent = with_proof(new_agent("w1"), token_for(config))
    agent.register.engines.append(described("other"))
    async with agent:
        await caller.workers(1)
        gateway.app.fleet.catalogue.find("other")
        gateway.app.agents.hub.set_rules((AllowedWorkers(id="w1", engines=("ech*",)),))
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


async def test_agent_enrols_by_token_and_returns_by_its_secret(
    config: GatewaySettings, tmp_path: Path
) -> None:
    table, token_file = tmp_path / "access.toml", tmp_path / "token"
    observer = '[[grants]]\nto = ["anonymous"]\nroles = ["observe"]\nengines = ["*"]\n'
    table.write_text(observer + '[[workers]]\nid = "edge-*"\n')
    (tmp_path / "models").mkdir()
    async with Gateway(replace(config, access=table)) as gateway:
        token_file.write_text(token_for(config, "edge-1"))
        command = (
            *(sys.executable, "-m", "synergai", "agent", "--gateway", gateway.hub_address),
            *("--models", str(tmp_path / "models"), "--state", str(tmp_path / "agent")),
            *("--worker-id", "edge-1", "--power", "none"),
            *("--enrolment-token-file", str(token_file)),
        )
        async with Caller(gateway.address).channel as channel:
            fleet = fleet_pb2_grpc.FleetStub(channel)
            for _ in range(2):  # at first by its token, then by its secret
                agent = await asyncio.create_subprocess_exec(
                    *command, stderr=asyncio.subprocess.DEVNULL
                )
                try:
                    async with asyncio.timeout(60):
                        await joined(fleet, "edge-1")
                finally:
                    agent.kill()
                    await agent.wait()
                token_file.unlink(missing_ok=True)
                async with asyncio.timeout(60):
                    await joined(fleet)
        assert (tmp_path / "agent" / SECRET_FILE).stat().st_mode & 0o777 == 0o600


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


async def test_gateway_that_cannot_read_its_enrolments_leaves_no_task(
    config: GatewaySettings, tmp_path: Path
) -> None:
    table = tmp_path / "access.toml"
    table.write_text('[[workers]]\nid = "*"\n')
    config.state.mkdir(parents=True, exist_ok=True)
    (config.state / ENROLMENTS_FILE).write_text("damaged")
    with pytest.raises(StateDamaged):
        await Gateway(replace(config, access=table)).__aenter__()
    assert asyncio.all_tasks() == {asyncio.current_task()}
