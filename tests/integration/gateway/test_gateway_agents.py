"""Agents that break the protocol, disconnect, reconnect, or register with invalid values."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial

import grpc
import pytest

from gateway.server import Gateway
from synergai.v1 import common_pb2, fleet_pb2, hub_pb2, jobs_pb2
from synergai.wire import rpc
from synergai.wire.limits import HUB_VERSION, WORKER_LOST_AFTER
from tests import http2
from tests.integration.gateway.conftest import Caller, FakeAgent, NewAgent, infer_request


async def test_impossible_report_closes_the_agents_connection(
    agent: FakeAgent, caller: Caller, new_agent: NewAgent
) -> None:
    async def answer(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, done=9)

    agent.answer = answer
    job_id = (await caller.submit()).id
    await asyncio.wait_for(agent.ended.wait(), 30)
    assert agent.code is grpc.StatusCode.INVALID_ARGUMENT
    async with new_agent("honest"):
        job = (await caller.watched(job_id))[-1]
    assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert [(e.worker_id, e.first, e.count) for e in job.executions] == [("honest", 0, 10)]


async def test_job_fails_after_repeated_impossible_reports(
    agent: FakeAgent, caller: Caller, new_agent: NewAgent
) -> None:
    job_id = (await caller.submit()).id
    await caller.watched(job_id)

    async def overreport(broken: FakeAgent, assignment: hub_pb2.Assignment) -> None:
        await broken.end(assignment, done=assignment.count + 1)

    await agent.disconnect()
    job_id = (await caller.submit()).id
    for number in range(3):
        broken = new_agent(f"broken-{number}")
        broken.answer = partial(overreport, broken)
        async with broken:
            await asyncio.wait_for(broken.ended.wait(), 30)
    job = (await caller.watched(job_id))[-1]
    assert job.state == jobs_pb2.JOB_STATE_FAILED
    assert "broke the protocol" in job.reason


async def test_worker_that_only_its_work_socket_shows_alive_is_kept(
    agent: FakeAgent, caller: Caller
) -> None:
    agent.heartbeats = False
    for _ in range(3 * WORKER_LOST_AFTER):
        await agent.report(hub_pb2.WorkReports())
        await asyncio.sleep(agent.heartbeat_s / 2)
    assert not agent.gone
    assert len(await caller.workers(1)) == 1


async def test_worker_that_takes_no_control_messages_is_lost_although_it_sends_heartbeats(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rpc, "_READ_STATUS_WITHIN_S", 0.1)
    register = hub_pb2.Register(protocol_version=HUB_VERSION, worker_id="deaf", worker_class="test")
    hello = hub_pb2.AgentControl(register=register).SerializeToString()
    beat = hub_pb2.AgentControl(heartbeat=hub_pb2.Heartbeat(sequence=1)).SerializeToString()
    with http2.Http2Connection(gateway.hub_address, window=0) as connection:
        connection.send([http2.headers(1, "/synergai.v1.Hub/Control")])
        connection.send([http2.message(1, hello, last=False)])
        async with asyncio.timeout(30):
            while not connection.is_closed():
                with contextlib.suppress(OSError):
                    connection.send([http2.message(1, beat, last=False)])
                await asyncio.sleep(0.1)
    assert "worker 'deaf' has taken no control message for 1.5 s: it is lost" in caplog.text


async def test_worker_that_takes_control_messages_slowly_is_kept(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    register = hub_pb2.Register(protocol_version=HUB_VERSION, worker_id="slow", worker_class="test")
    hello = hub_pb2.AgentControl(register=register).SerializeToString()
    beat = hub_pb2.AgentControl(heartbeat=hub_pb2.Heartbeat(sequence=1)).SerializeToString()
    widen = http2.frame(http2.WINDOW_UPDATE, 0, 1, (1).to_bytes(4, "big"))
    with http2.Http2Connection(gateway.hub_address, window=0) as connection:
        connection.send([http2.headers(1, "/synergai.v1.Hub/Control")])
        connection.send([http2.message(1, hello, last=False)])
        for _ in range(25):
            connection.send([http2.message(1, beat, last=False), widen])
            await asyncio.sleep(0.1)
    assert "worker slow of class test registered" in caplog.text
    assert "lost" not in caplog.text


async def test_newer_registration_replaces_the_older(
    agent: FakeAgent, caller: Caller, new_agent: NewAgent
) -> None:
    async with new_agent("w1") as newer:
        await asyncio.wait_for(agent.ended.wait(), 30)
        assert "another agent has registered" in agent.gone
        await caller.workers(1)
        await caller.oip.ModelInfer(infer_request(), timeout=30)
        assert newer.assignments
        assert not agent.assignments


async def test_second_process_under_a_live_id_is_refused_and_the_first_stays(
    caller: Caller, new_agent: NewAgent
) -> None:
    first, second = new_agent("w2"), new_agent("w2")
    first.register.instance, second.register.instance = "one", "two"
    async with first:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await second.connect()
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "--worker-id" in (caught.value.details() or "")
        await second.disconnect()
        await caller.oip.ModelInfer(infer_request(), timeout=30)
        assert not first.gone
    await caller.workers(0)
    third = new_agent("w2")
    third.register.instance = "three"
    async with third:
        assert "w2" in [worker.id for worker in await caller.workers(1)]


async def test_reopened_work_stream_gets_the_unfinished_queries(
    agent: FakeAgent, caller: Caller
) -> None:
    agent.answer = agent.hold
    job_id = (await caller.submit()).id
    await agent.until(lambda: len(agent.assignments) == 1)
    (earlier,) = agent.assignments
    agent.answer = agent.complete
    await agent.reopen_work()
    assert (await caller.watched(job_id))[-1].state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert agent.assignments[-1].id > earlier.id


async def test_draining_worker_gets_no_assignments(
    agent: FakeAgent, caller: Caller, new_agent: NewAgent
) -> None:
    await agent.send(hub_pb2.AgentControl(draining=hub_pb2.Draining()))
    await caller.until(lambda worker: worker.state == fleet_pb2.WORKER_STATE_DRAINING)
    async with new_agent("w2"):
        await caller.workers(2)
        for _ in range(5):
            await caller.oip.ModelInfer(infer_request(), timeout=30)
    assert not agent.assignments


def registration(
    protocol_version: int = HUB_VERSION,
    worker_id: str = "w1",
    worker_class: str = "test",
    engines: Sequence[common_pb2.Engine] = (),
    sessions: Sequence[common_pb2.Session] = (),
) -> hub_pb2.Register:
    return hub_pb2.Register(
        protocol_version=protocol_version,
        worker_id=worker_id,
        worker_class=worker_class,
        engines=engines,
        sessions=sessions,
    )


@pytest.mark.parametrize(
    ("register", "code"),
    [
        (registration(protocol_version=9), "UNIMPLEMENTED"),
        (registration(worker_id="../etc"), "INVALID_ARGUMENT"),
        (registration(worker_class="a b"), "INVALID_ARGUMENT"),
        (registration(engines=[common_pb2.Engine(name="/x", fault="f")]), "INVALID_ARGUMENT"),
        (registration(engines=[common_pb2.Engine(name="x", fault="f")] * 2), "INVALID_ARGUMENT"),
        (registration(sessions=[common_pb2.Session(engine="other")]), "INVALID_ARGUMENT"),
    ],
)
async def test_impossible_registration_is_refused(
    new_agent: NewAgent, register: hub_pb2.Register, code: str
) -> None:
    first = hub_pb2.AgentControl(register=register).SerializeToString()
    assert (await new_agent("w1").refusal(first)).code() is grpc.StatusCode[code]


@pytest.mark.parametrize(
    "first",
    [hub_pb2.AgentControl(heartbeat=hub_pb2.Heartbeat()).SerializeToString(), b"", b"\x08"],
)
async def test_first_message_must_register(new_agent: NewAgent, first: bytes) -> None:
    refusal = await new_agent("w1").refusal(first)
    assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "message",
    [
        hub_pb2.AgentControl(
            session_changed=hub_pb2.SessionChanged(
                session=common_pb2.Session(engine="other"), resident=True
            )
        ),
        hub_pb2.AgentControl(
            configurations_unusable=hub_pb2.ConfigurationsUnusable(engine="other")
        ),
    ],
)
async def test_message_about_an_unregistered_engine_is_a_violation(
    agent: FakeAgent, caller: Caller, message: hub_pb2.AgentControl
) -> None:
    await agent.send(message)
    await asyncio.wait_for(agent.ended.wait(), 30)
    assert agent.code is grpc.StatusCode.INVALID_ARGUMENT
    await caller.workers(0)


async def test_engine_that_breaks_is_no_longer_served(agent: FakeAgent, caller: Caller) -> None:
    broken = common_pb2.Engine()
    broken.CopyFrom(agent.register.engines[0])
    broken.fault = "it cannot be loaded"
    changed = hub_pb2.EngineChanged(engine=broken)
    await agent.send(hub_pb2.AgentControl(engine_changed=changed))
    await caller.until(lambda worker: bool(worker.engines[0].fault))
    failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=30))
    assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_unprofiled_engine_is_measured_and_then_profiled(
    new_agent: NewAgent, caller: Caller
) -> None:
    agent = new_agent("w1")
    agent.register.worker_class = "unmeasured"

    async def measured(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, done=assignment.count, compute_s=assignment.count / 100)

    agent.answer = measured
    async with agent:
        assert list((await caller.workers(1))[0].unprofiled) == ["echo"]
        job = (await caller.watched((await caller.submit(100)).id))[-1]
        assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
        assert list((await caller.workers(1))[0].unprofiled) == []


async def test_requests_leave_a_worker_whose_hosts_die_and_the_log_says_so(
    caller: Caller,
    agent: FakeAgent,
    new_agent: NewAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, outcome=hub_pb2.OUTCOME_FAILED, fault=hub_pb2.FAULT_HOST_DIED)

    await caller.oip.ModelInfer(infer_request(), timeout=30)
    agent.assignments.clear()
    agent.answer = answer
    async with new_agent("w2") as other:
        await caller.workers(2)
        for _ in range(20):
            await caller.oip.ModelInfer(infer_request(), timeout=30)
        assert len(other.assignments) == 20
    assert 0 < len(agent.assignments) < 10
    assert "worker w1 makes no progress with echo: nothing for" in caplog.text
