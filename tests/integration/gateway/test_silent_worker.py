"""Workers that go silent but keep their connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc
import pytest

from synergai.v1 import common_pb2, hub_pb2
from tests.integration.gateway.conftest import ECHO
from tests.message_fields import RequestFactory

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Caller, FakeAgent, NewAgent


async def test_requests_leave_a_silent_worker_although_each_expires_first(
    caller: Caller, agent: FakeAgent, new_agent: NewAgent, a_request: RequestFactory
) -> None:
    for _ in range(20):
        await caller.oip.ModelInfer(a_request(), timeout=5)
    agent.answer = lambda _: asyncio.sleep(3600)
    other = new_agent("w2")
    other.register.sessions.add(engine=ECHO, configuration=common_pb2.Configuration(threads=1))
    async with other:
        await caller.workers(2)
        for _ in range(20):
            with suppress(grpc.aio.AioRpcError):
                await caller.oip.ModelInfer(a_request(), timeout=0.5)
        assert len(other.assignments) >= 15


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (hub_pb2.OUTCOME_STOPPED, hub_pb2.FAULT_UNSPECIFIED),
        (hub_pb2.OUTCOME_FAILED, hub_pb2.FAULT_HOST_DIED),
    ],
)
async def test_requests_leave_a_worker_that_ends_each_without_an_answer(
    caller: Caller,
    agent: FakeAgent,
    new_agent: NewAgent,
    a_request: RequestFactory,
    caplog: pytest.LogCaptureFixture,
    outcome: hub_pb2.Outcome.ValueType,
    fault: hub_pb2.Fault.ValueType,
) -> None:
    async def answer(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, outcome=outcome, fault=fault)

    await caller.oip.ModelInfer(a_request(), timeout=30)
    agent.assignments.clear()
    agent.answer = answer
    async with new_agent("w2") as other:
        await caller.workers(2)
        for _ in range(20):
            await caller.oip.ModelInfer(a_request(), timeout=30)
        assert len(other.assignments) == 20
    assert 0 < len(agent.assignments) < 10
    assert f"worker {agent.register.worker_id} makes no progress with {ECHO}" in caplog.text
