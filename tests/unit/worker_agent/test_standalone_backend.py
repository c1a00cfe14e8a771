"""Loading and unloading of engines in an agent's own server, on hosts that only record calls."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from synergai.domain import Configuration, Engine, EngineName, Outcome, Session, TensorSpec
from synergai.errors import DeadlineExceeded, EngineUnloaded, EngineUnusable
from synergai.runtime.clock import Clock
from worker_agent.ipc.frames import Tally
from worker_agent.standalone.backend import AgentBackend, AgentRequest

if TYPE_CHECKING:
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import RawRequest
    from worker_agent.hosts.pool import HostPool
    from worker_agent.runner.runner import Runner
    from worker_agent.runner.work_item import WorkItem

DIGITS = EngineName("digits")
SESSION = Session(DIGITS, Configuration(1))
ENGINE = Engine(
    name=DIGITS,
    version="1",
    backend="onnxruntime",
    inputs=(TensorSpec("x", "FP32", (1,)),),
    outputs=(TensorSpec("y", "FP32", (1,)),),
)


class Agent:
    """A backend; stands for its hosts, whose loads the test ends, and for its runner."""

    def __init__(self) -> None:
        self.resident: list[Session] = []
        self.loads: dict[Session, asyncio.Future[str]] = {}
        self.items: list[WorkItem] = []
        self.backend = AgentBackend(
            cast("Runner", self),
            cast("HostPool", self),
            {DIGITS: ENGINE},
            [SESSION.configuration],
            Clock(),
        )

    def resident_sessions(self) -> list[Session]:
        return self.resident

    def load(self, session: Session) -> asyncio.Future[str]:
        return self.loads.setdefault(session, asyncio.get_running_loop().create_future())

    def retire(self, _engine: EngineName) -> None:
        self.resident.clear()
        for load in self.loads.values():
            load.cancel()
        self.loads.clear()

    def loaded(self) -> None:
        """Let the load end."""
        self.resident.append(SESSION)
        self.loads.pop(SESSION).set_result("host")

    def add(self, item: WorkItem) -> None:
        self.items.append(item)

    def abandon(self, item: WorkItem) -> None:
        self.items.remove(item)

    def begin(self) -> AgentRequest:
        """Send a request."""
        message = SimpleNamespace(model_name=DIGITS, model_version="")
        raw = SimpleNamespace(data=b"", parsed=SimpleNamespace(message=message))
        return self.backend.begin(cast("RawRequest[RequestHeader]", raw), None, "")

    def answer(self) -> None:
        """Answer the first request."""
        self.items.pop(0).handler.on_ended(Outcome.COMPLETED, Tally(1), [b"response"])


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ending", ["answered", "abandoned"])
async def test_engine_is_unloaded_once_its_requests_have_ended(ending: str) -> None:
    agent = Agent()
    agent.resident.append(SESSION)
    requests = [agent.begin(), agent.begin()]
    await agent.backend.unload(DIGITS)
    assert agent.backend.state_out_of_service(DIGITS) == "UNLOADING"
    for request in requests:
        assert agent.resident == [SESSION]
        if ending == "answered":
            agent.answer()
        else:
            request.abandon()
        await turns()
    assert agent.resident == []
    assert agent.backend.state_out_of_service(DIGITS) == "UNAVAILABLE"


async def test_unloading_leaves_the_load_of_an_accepted_request() -> None:
    agent = Agent()
    request = agent.begin()
    load = agent.load(SESSION)
    await agent.backend.unload(DIGITS)
    agent.loaded()
    assert await load
    agent.answer()
    assert await request.result == b"response"
    await turns()
    assert agent.resident == []


async def test_idle_engine_is_unloaded_at_once() -> None:
    agent = Agent()
    agent.resident.append(SESSION)
    agent.begin()
    agent.answer()
    await turns()
    assert agent.resident == [SESSION]
    await agent.backend.unload(DIGITS)
    assert agent.resident == []


async def test_load_begins_again_when_files_are_replaced() -> None:
    agent = Agent()
    loading = asyncio.create_task(agent.backend.load(DIGITS, None))
    await turns()
    agent.retire(DIGITS)
    await turns()
    agent.loaded()
    await loading


async def test_load_fails_if_its_engine_is_unloaded_meanwhile() -> None:
    agent = Agent()
    loading = asyncio.create_task(agent.backend.load(DIGITS, None))
    await turns()
    await agent.backend.unload(DIGITS)
    with pytest.raises(EngineUnusable, match="was unloaded meanwhile"):
        await loading
    with pytest.raises(EngineUnloaded):
        agent.begin()
    assert agent.loads == {}


async def test_engine_is_in_service_once_loaded_although_the_deadline_of_the_call_has_passed() -> (
    None
):
    agent = Agent()
    await agent.backend.unload(DIGITS)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            await agent.backend.load(DIGITS, 0.0)
    agent.loaded()
    await turns()
    assert agent.resident == [SESSION]
    agent.begin()


async def test_engine_that_is_unloaded_after_the_deadline_of_its_load_stays_unloaded() -> None:
    agent = Agent()
    await agent.backend.unload(DIGITS)
    with pytest.raises(DeadlineExceeded):
        await agent.backend.load(DIGITS, 0.0)
    await agent.backend.unload(DIGITS)
    loading = asyncio.create_task(agent.backend.load(DIGITS, None))
    await turns()
    await agent.backend.unload(DIGITS)
    with pytest.raises(EngineUnusable, match="was unloaded meanwhile"):
        await loading
    assert (agent.loads, agent.resident) == ({}, [])
    with pytest.raises(EngineUnloaded):
        agent.begin()


async def test_closing_ends_loads_whose_deadline_has_passed() -> None:
    agent = Agent()
    with pytest.raises(DeadlineExceeded):
        await agent.backend.load(DIGITS, 0.0)
    await agent.backend.close()
    agent.retire(DIGITS)  # as closing the hosts cancels their loads
    await turns()
    assert agent.loads == {}
