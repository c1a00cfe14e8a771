"""Agents that break the protocol, disconnect, reconnect, or register with invalid values."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from synergai.v1 import common_pb2, hub_pb2, jobs_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.oip import inference_pb2 as oip

    Requests = Callable[..., oip.ModelInferRequest]


async def submit(caller: Any, queries: int = 10) -> str:
    spec = jobs_pb2.JobSpec(engine="echo", queries=queries)
    job = await caller.jobs.Submit(jobs_pb2.SubmitRequest(spec=spec), timeout=5)
    job_id: str = job.id
    return job_id


async def ended(caller: Any, job_id: str) -> jobs_pb2.Job:
    call = caller.jobs.Watch(jobs_pb2.WatchRequest(job_id=job_id), timeout=10)
    try:
        jobs = [job async for job in call]
    finally:
        call.cancel()
    last: jobs_pb2.Job = jobs[-1]
    return last


@pytest.mark.parametrize(
    "progress",
    [
        {"done": 11},
        {"done": 10, "labelled": 11},
        {"done": 10, "labelled": 5, "correct": 6},
        {"done": 10, "compute_s": math.nan},
        {"done": 10, "compute_s": -1.0},
        {"done": 10, "responses": [b""]},
        {"done": 9},
    ],
)
async def test_impossible_report_closes_the_agents_connection(
    agent: Any, caller: Any, new_agent: Any, progress: dict[str, Any]
) -> None:
    async def answer(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, **progress)

    agent.answer = answer
    job_id = await submit(caller)
    await asyncio.wait_for(agent.ended.wait(), 5)
    assert agent.code is grpc.StatusCode.INVALID_ARGUMENT
    async with new_agent("honest"):
        job = await ended(caller, job_id)
    assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert [(e.worker_id, e.first, e.count) for e in job.executions] == [("honest", 0, 10)]


async def test_job_fails_after_repeated_impossible_reports(
    agent: Any, caller: Any, new_agent: Any
) -> None:
    job_id = await submit(caller)
    await ended(caller, job_id)

    async def overreport(broken: Any, assignment: hub_pb2.Assignment) -> None:
        await broken.end(assignment, done=assignment.count + 1)

    await agent.disconnect()
    job_id = await submit(caller)
    for number in range(3):
        broken = new_agent(f"broken-{number}")
        broken.answer = lambda assignment, broken=broken: overreport(broken, assignment)
        async with broken:
            await asyncio.wait_for(broken.ended.wait(), 5)
    job = await ended(caller, job_id)
    assert job.state == jobs_pb2.JOB_STATE_FAILED
    assert "broke the protocol" in job.reason


@pytest.mark.parametrize("responses", [[], [b"\x08"], [b"", b""]])
async def test_invalid_response_is_not_passed_on(
    agent: Any, caller: Any, a_request: Requests, responses: list[bytes]
) -> None:
    async def answer(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, done=1, responses=responses)

    agent.answer = answer
    failure = await caller.failure(caller.oip.ModelInfer(a_request(), timeout=0.5))
    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(agent.ended.wait(), 5)
    assert agent.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_report_on_an_assignment_that_is_not_in_flight_is_ignored(
    agent: Any, caller: Any, a_request: Requests
) -> None:
    async def twice(assignment: hub_pb2.Assignment) -> None:
        unknown = hub_pb2.Assignment(id=assignment.id + 1000)
        await agent.end(unknown, done=1, responses=[b"stale"])
        await agent.complete(assignment)
        await agent.complete(assignment)

    agent.answer = twice
    for _ in range(3):
        assert await caller.oip.ModelInfer(a_request(), timeout=5)
    assert not agent.gone


async def test_job_of_a_lost_worker_resumes_after_its_last_report(
    agent: Any, caller: Any, new_agent: Any
) -> None:
    reported = asyncio.Event()

    async def half(assignment: hub_pb2.Assignment) -> None:
        await agent.progress(assignment, done=4, labelled=4, correct=3)
        reported.set()

    agent.answer = half
    job_id = await submit(caller)
    await asyncio.wait_for(reported.wait(), 5)
    watch = caller.jobs.Watch(jobs_pb2.WatchRequest(job_id=job_id), timeout=10)
    async for job in watch:
        if job.queries_done == 4:
            break
    watch.cancel()
    await agent.disconnect()
    async with new_agent("w2"):
        job = await ended(caller, job_id)
    ranges = [(e.worker_id, e.first, e.count) for e in job.executions]
    assert ranges == [("w1", 0, 4), ("w2", 4, 6)]
    assert (job.queries_done, job.labelled, job.correct) == (10, 10, 9)


async def test_silent_worker_is_lost_and_its_job_run_on_another(
    new_agent: Any, caller: Any
) -> None:
    silent = new_agent("silent")
    silent.heartbeats = False
    silent.answer = silent.hold
    async with silent, new_agent("w2") as other:
        other.answer = other.hold
        job_id = await submit(caller)
        await asyncio.wait_for(silent.ended.wait(), 5)
        assert silent.code is grpc.StatusCode.UNAVAILABLE
        assert [worker.id for worker in await caller.workers(1)] == ["w2"]
        other.answer = other.complete
        for assignment in other.assignments:
            await other.complete(assignment)
        assert (await ended(caller, job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_newer_registration_replaces_the_older(
    agent: Any, caller: Any, new_agent: Any, a_request: Requests
) -> None:
    async with new_agent("w1") as newer:
        await asyncio.wait_for(agent.ended.wait(), 5)
        assert "another agent has registered" in agent.gone
        await caller.workers(1)
        await caller.oip.ModelInfer(a_request(), timeout=5)
        assert newer.assignments
        assert not agent.assignments


async def test_reopened_work_stream_gets_the_unfinished_queries(agent: Any, caller: Any) -> None:
    agent.answer = agent.hold
    job_id = await submit(caller)
    await agent.until(lambda: len(agent.assignments) == 1)
    (earlier,) = agent.assignments
    agent.answer = agent.complete
    await agent.reopen_work()
    assert (await ended(caller, job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert agent.assignments[-1].id > earlier.id


async def test_draining_worker_gets_no_assignments(
    agent: Any, caller: Any, new_agent: Any, a_request: Requests
) -> None:
    await agent.control.write(hub_pb2.AgentControl(draining=hub_pb2.Draining()))
    async with new_agent("w2"):
        await caller.workers(2)
        for _ in range(5):
            await caller.oip.ModelInfer(a_request(), timeout=5)
    assert not agent.assignments


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"protocol_version": 9}, "UNIMPLEMENTED"),
        ({"worker_id": "../etc"}, "INVALID_ARGUMENT"),
        ({"worker_id": ""}, "INVALID_ARGUMENT"),
        ({"worker_class": "a b"}, "INVALID_ARGUMENT"),
        ({"engines": [common_pb2.Engine(name="x")]}, "INVALID_ARGUMENT"),
        ({"engines": [common_pb2.Engine(name="/x", fault="f")]}, "INVALID_ARGUMENT"),
        ({"engines": [common_pb2.Engine(name="x", fault="f")] * 2}, "INVALID_ARGUMENT"),
        ({"sessions": [common_pb2.Session(engine="other")]}, "INVALID_ARGUMENT"),
        ({"configurations": [common_pb2.Configuration(threads=9999)]}, "INVALID_ARGUMENT"),
    ],
)
async def test_impossible_registration_is_refused(
    new_agent: Any, change: dict[str, Any], code: str
) -> None:
    agent = new_agent("w1")
    register = hub_pb2.Register(**{"protocol_version": 1, "worker_id": "w1", **change})
    if not register.worker_class and "worker_class" not in change:
        register.worker_class = "test"
    call = agent.channel.stream_stream("/synergai.v1.Hub/Control")(
        iter([hub_pb2.AgentControl(register=register).SerializeToString()]), timeout=5
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    call.cancel()
    await agent.disconnect()
    assert caught.value.code() is grpc.StatusCode[code]


@pytest.mark.parametrize(
    "first",
    [hub_pb2.AgentControl(heartbeat=hub_pb2.Heartbeat()).SerializeToString(), b"", b"\x08"],
)
async def test_first_message_must_register(new_agent: Any, first: bytes) -> None:
    agent = new_agent("w1")
    call = agent.channel.stream_stream("/synergai.v1.Hub/Control")(iter([first]), timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    call.cancel()
    await agent.disconnect()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_work_stream_needs_a_connection_id(new_agent: Any) -> None:
    agent = new_agent("w1")
    call = agent.channel.stream_stream("/synergai.v1.Hub/Work")(
        iter([]), metadata=[("synergai-session", "guessed")], timeout=5
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    call.cancel()
    await agent.disconnect()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_malformed_report_closes_the_connection(agent: Any, caller: Any) -> None:
    call = agent.channel.stream_stream(
        "/synergai.v1.Hub/Work", response_deserializer=hub_pb2.WorkOrders.FromString
    )(iter([b"\x08"]), metadata=[("synergai-session", agent.connection_id)], timeout=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await anext(aiter(call))
    call.cancel()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await caller.workers(0)


async def test_session_of_an_unregistered_engine_is_a_violation(agent: Any, caller: Any) -> None:
    changed = hub_pb2.SessionChanged(session=common_pb2.Session(engine="other"), resident=True)
    await agent.control.write(hub_pb2.AgentControl(session_changed=changed))
    await asyncio.wait_for(agent.ended.wait(), 5)
    assert agent.code is grpc.StatusCode.INVALID_ARGUMENT
    await caller.workers(0)


async def test_engine_that_breaks_is_no_longer_served(
    agent: Any, caller: Any, a_request: Requests
) -> None:
    broken = common_pb2.Engine()
    broken.CopyFrom(agent.register.engines[0])
    broken.fault = "it cannot be loaded"
    changed = hub_pb2.EngineChanged(engine=broken)
    await agent.control.write(hub_pb2.AgentControl(engine_changed=changed))
    await caller.until(lambda worker: bool(worker.engines[0].fault))
    failure = await caller.failure(caller.oip.ModelInfer(a_request(), timeout=5))
    assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_sessions_are_listed_while_resident(agent: Any, caller: Any) -> None:
    session = common_pb2.Session(engine="echo", configuration=common_pb2.Configuration(threads=1))
    for resident in (True, False):
        changed = hub_pb2.SessionChanged(session=session, resident=resident, model_load_s=0.1)
        await agent.control.write(hub_pb2.AgentControl(session_changed=changed))
        await caller.until(lambda worker, wanted=resident: bool(worker.sessions) is wanted)


async def test_unprofiled_engine_is_measured_and_then_profiled(new_agent: Any, caller: Any) -> None:
    agent = new_agent("w1")
    agent.register.worker_class = "unmeasured"

    async def measured(assignment: hub_pb2.Assignment) -> None:
        await agent.end(assignment, done=assignment.count, compute_s=assignment.count / 100)

    agent.answer = measured
    async with agent:
        assert list((await caller.workers(1))[0].unprofiled) == ["echo"]
        job = await ended(caller, await submit(caller, queries=100))
        assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
        assert list((await caller.workers(1))[0].unprofiled) == []


async def test_newer_engine_version_runs_once_the_older_one_has_left(
    agent: Any, caller: Any, new_agent: Any
) -> None:
    newer = new_agent("newer")
    newer.register.engines[0].version = "2"
    async with newer:
        await caller.workers(2)
        await agent.disconnect()
        job = await ended(caller, await submit(caller))
    assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert {each.worker_id for each in job.executions} == {"newer"}
