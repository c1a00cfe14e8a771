"""Workers with different engines of one name."""

from __future__ import annotations

import asyncio

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from profiler.dictionary.files import add_to_dictionary
from synergai.domain import EngineName
from synergai.v1 import common_pb2, fleet_pb2, hub_pb2
from tests.http1 import get
from tests.integration.gateway.conftest import PROFILE, Caller, FakeAgent, NewAgent, infer_request
from tests.waiting import until

ECHO = EngineName("echo")
HONEST, ROGUE = "a" * 64, "b" * 64


def with_file(agent: FakeAgent, digest: str) -> FakeAgent:
    agent.register.engines[0].digest = digest
    return agent


async def faults(caller: Caller, count: int) -> dict[str, str]:
    return {worker.id: worker.engines[0].fault for worker in await caller.workers(count)}


async def test_newcomer_with_another_file_harms_no_worker_and_is_shown(
    gateway: Gateway, caller: Caller, new_agent: NewAgent
) -> None:
    honest, rogue = with_file(new_agent("w1"), HONEST), with_file(new_agent("w2"), ROGUE)
    async with honest:
        await caller.oip.ModelInfer(infer_request(), timeout=30)
        async with rogue:
            shown = await faults(caller, 2)
            assert shown["w1"] == ""
            assert "a file of SHA-256 bbbbbbbbbbbb… instead of aaaaaaaaaaaa…" in shown["w2"]
            gateway.app.base.metrics.snapshot()
            conflicts = gateway.app.base.metrics.registry.get_sample_value(
                "synergai_worker_engine_conflicts",
                {
                    "worker": "w2",
                    "engine": "echo",
                    "variant": "",
                    "digest": ROGUE,
                    "in_service": HONEST,
                },
            )
            assert conflicts == 1
            health = (await get(gateway.http_address, "/healthz")).body.decode()
            assert "engine is not used: a file of SHA-256 bbbbbbbbbbbb… instead of" in health
            for _ in range(5):
                await caller.oip.ModelInfer(infer_request(), timeout=30)
            assert not rogue.assignments
            # The honest worker updates its file: the other one's wait is not rewarded.
            changed = with_file(new_agent("w1"), "c" * 64)
            changed_engine = hub_pb2.EngineChanged(engine=changed.register.engines[0])
            await honest.send(hub_pb2.AgentControl(engine_changed=changed_engine))
            while "instead of cccc" not in (await faults(caller, 2))["w2"]:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.02)
            await caller.oip.ModelInfer(infer_request(), timeout=30)
            assert not rogue.assignments
            await changed.disconnect()


async def break_engine(agent: FakeAgent, caller: Caller, fault: str) -> common_pb2.Engine:
    """Report a fault of the agent's engine, and wait until clients see it."""
    engine = agent.register.engines[0]
    engine.fault = fault
    changed = hub_pb2.EngineChanged(engine=engine)
    await agent.send(hub_pb2.AgentControl(engine_changed=changed))
    while not (await faults(caller, 1))["w1"]:  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0.02)
    return engine


async def test_forgotten_engine_with_profiles_is_listed_again_once_it_is_offered(
    config: GatewaySettings,
) -> None:
    config.state.mkdir(parents=True)
    add_to_dictionary(config.state / "dictionary.db", [PROFILE])
    async with Gateway(config) as gateway:
        assert gateway.app.fleet.catalogue.is_known(ECHO)
        caller = Caller(gateway.address)
        async with caller.channel:
            await caller.fleet.ForgetEngine(fleet_pb2.ForgetEngineRequest(engine="echo"))
        assert not gateway.app.fleet.catalogue.is_known(ECHO)
    async with Gateway(config) as gateway:
        assert not gateway.app.fleet.catalogue.is_known(ECHO)
        assert len(gateway.app.fleet.profiles.dictionary) == 1
        async with FakeAgent(gateway.hub_address, "w1"):
            await until(lambda: gateway.app.fleet.catalogue.is_known(ECHO), 0.02)
    async with Gateway(config) as gateway:
        assert gateway.app.fleet.catalogue.is_known(ECHO)


async def test_agent_may_still_drop_sessions_of_a_forgotten_engine(
    caller: Caller, new_agent: NewAgent
) -> None:
    session = common_pb2.Session(engine="echo", configuration=common_pb2.Configuration(threads=1))
    async with new_agent("w1") as agent:
        await faults(caller, 1)
        echo = await break_engine(agent, caller, "its last load crashed")
        await caller.fleet.ForgetEngine(fleet_pb2.ForgetEngineRequest(engine="echo"))
        for resident in (True, False):
            reported = hub_pb2.SessionChanged(session=session, resident=resident)
            await agent.send(hub_pb2.AgentControl(session_changed=reported))
        unusable = hub_pb2.ConfigurationsUnusable(engine="echo")
        await agent.send(hub_pb2.AgentControl(configurations_unusable=unusable))
        echo.fault = ""
        mended = hub_pb2.EngineChanged(engine=echo)
        await agent.send(hub_pb2.AgentControl(engine_changed=mended))
        while not (await caller.workers(1))[0].engines:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.02)
        assert (await faults(caller, 1))["w1"] == ""
        assert not agent.gone
