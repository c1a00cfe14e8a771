"""Triton's extensions of the protocol: model configuration, statistics and repository."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.domain import EngineName
from synergai.oip import repository_pb2
from synergai.v1 import common_pb2, hub_pb2
from tests.calls import raw_unary
from tests.integration.gateway.conftest import Caller, Connect, FakeAgent, NewAgent, infer_request

SERVICE = "/inference.GRPCInferenceService"


def load(
    name: str = "echo",
    parameters: Mapping[str, repository_pb2.ModelRepositoryParameter] | None = None,
) -> repository_pb2.RepositoryModelLoadRequest:
    return repository_pb2.RepositoryModelLoadRequest(model_name=name, parameters=parameters)


def unload(name: str = "echo") -> repository_pb2.RepositoryModelUnloadRequest:
    return repository_pb2.RepositoryModelUnloadRequest(model_name=name)


async def state(caller: Caller, name: str = "echo") -> str:
    index = await caller.oip.RepositoryIndex(repository_pb2.RepositoryIndexRequest())
    (found,) = [model.state for model in index.models if model.name == name]
    return str(found)


async def test_index_lists_every_engine_and_why_it_is_not_ready(
    gateway: Gateway, caller: Caller, new_agent: NewAgent
) -> None:
    agent = new_agent("w1")
    agent.register.engines.add(name="broken", fault="the file is truncated")
    gateway.app.fleet.catalogue.add_known([EngineName("gone")])
    async with agent:
        await caller.workers(1)
        index = await caller.oip.RepositoryIndex(repository_pb2.RepositoryIndexRequest())
        ready = await caller.oip.RepositoryIndex(repository_pb2.RepositoryIndexRequest(ready=True))
    broken, echo, gone = index.models
    assert (echo.name, echo.version, echo.state, echo.reason) == ("echo", "1", "READY", "")
    assert (broken.name, broken.state) == ("broken", "UNAVAILABLE")
    assert "truncated" in broken.reason
    assert (gone.name, gone.state) == ("gone", "UNAVAILABLE")
    assert "no worker" in gone.reason
    assert [model.name for model in ready.models] == ["echo"]


async def test_load_uses_another_configuration_if_one_cannot_be_used(
    new_agent: NewAgent, caller: Caller
) -> None:
    agent = new_agent("w1")
    cuda = common_pb2.Configuration(execution_provider="CUDA")
    cpu = common_pb2.Configuration(threads=1)
    unusable = common_pb2.UnusableSession(
        session=common_pb2.Session(engine="echo", configuration=cpu), reason="no memory"
    )
    del agent.register.configurations[:]
    agent.register.configurations.extend([cuda, cpu])
    agent.register.unusable.append(unusable)
    async with agent:
        await caller.workers(1)
        await caller.oip.RepositoryModelLoad(load(), timeout=30)
        assert [session.configuration for session in agent.loads] == [cuda]
        (worker,) = await caller.workers(1)
        assert list(worker.unusable) == [unusable]
        # The agent has found out otherwise.
        changed = hub_pb2.ConfigurationsUnusable(engine="echo")
        await agent.send(hub_pb2.AgentControl(configurations_unusable=changed))
        await caller.until(lambda worker: not worker.unusable)


async def test_unloaded_engine_stays_unloaded_across_restarts(
    config: GatewaySettings, connect: Connect
) -> None:
    async with Gateway(config) as gateway:
        caller, agent = await connect(gateway)
        await caller.oip.RepositoryModelUnload(unload(), timeout=30)
        await agent.disconnect()
    async with Gateway(config) as gateway:
        caller, agent = await connect(gateway)
        assert await state(caller) == "UNAVAILABLE"
        await caller.oip.RepositoryModelLoad(load(), timeout=30)
        await agent.disconnect()
    async with Gateway(config) as gateway:
        caller, _ = await connect(gateway)
        assert await state(caller) == "READY"


async def test_requests_accepted_before_an_unload_complete(
    agent: FakeAgent, caller: Caller
) -> None:
    may_end = asyncio.Event()

    async def wait(assignment: hub_pb2.Assignment) -> None:
        await may_end.wait()
        await agent.complete(assignment)

    agent.answer = wait
    calls = [caller.oip.ModelInfer(infer_request(), timeout=60) for _ in range(3)]
    answers = asyncio.gather(*calls)
    await agent.until(lambda: len(agent.assignments) >= 1)
    await caller.oip.RepositoryModelUnload(unload(), timeout=30)
    may_end.set()
    assert len(await answers) == 3


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
async def test_kserve_messages_of_the_same_calls_work(caller: Caller, method: str) -> None:
    named = b"\x0a\x04echo"  # KServe's message has the model's name as its first field
    answer = await raw_unary(caller.channel, f"{SERVICE}/{method}")(named, timeout=30)
    assert answer == named + b"\x10\x01"
