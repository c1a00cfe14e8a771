"""Jobs through a gateway: accepted, watched, cancelled, and finished after a restart."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from profiler.simulator.recording import replay
from synergai.v1 import hub_pb2, jobs_pb2
from tests.calls import raw_unary
from tests.integration.gateway.conftest import Caller, Connect, FakeAgent, infer_request


@pytest.mark.usefixtures("agent")
async def test_job_succeeds_and_reports_its_executions(caller: Caller) -> None:
    asked: dict[str, Any] = {"qos_s": 30.0, "priority": 3, "tenant": "lab"}
    began = time.monotonic()
    job = await caller.submit(20, **asked)
    last = (await caller.watched(job.id))[-1]
    passed_s = time.monotonic() - began
    assert last == await caller.jobs.Get(jobs_pb2.GetRequest(job_id=job.id))
    assert last.state == jobs_pb2.JOB_STATE_SUCCEEDED
    wanted = jobs_pb2.JobSpec(engine="echo", queries=20, **asked)
    wanted.version = "1"  # chosen when the job was accepted
    assert last.spec == wanted
    assert (last.queries_done, last.labelled, last.correct) == (20, 20, 20)
    assert [(e.worker_id, e.configuration.threads) for e in last.executions] == [("w1", 1)]
    assert last.estimated_s == pytest.approx(20 / 1000, rel=0.5)
    assert 0 < last.actual_s <= passed_s
    assert (last.violated, last.excess_s, last.reason) == (False, 0.0, "")
    assert last.submitted_at.ToNanoseconds() < last.finished_at.ToNanoseconds()


async def test_watch_shows_progress_and_ends_with_the_job(agent: FakeAgent, caller: Caller) -> None:
    may_go_on = asyncio.Event()

    async def in_two_steps(assignment: hub_pb2.Assignment) -> None:
        await agent.progress(assignment, done=3)
        await may_go_on.wait()
        await agent.complete(assignment)

    agent.answer = in_two_steps
    job = await caller.submit()
    call = caller.jobs.Watch(jobs_pb2.WatchRequest(job_id=job.id), timeout=60)
    seen = []
    async for status in call:
        seen.append((status.state, status.queries_done))
        if status.queries_done == 3:
            may_go_on.set()
    call.cancel()
    assert (jobs_pb2.JOB_STATE_RUNNING, 3) in seen
    assert seen[-1] == (jobs_pb2.JOB_STATE_SUCCEEDED, 10)


async def test_cancelled_job_stops_and_keeps_what_is_done(agent: FakeAgent, caller: Caller) -> None:
    async def a_part(assignment: hub_pb2.Assignment) -> None:
        await agent.progress(assignment, done=4)
        await agent.hold(assignment)

    agent.answer = a_part
    job = await caller.submit()
    await caller.recorded(job.id, 4)
    cancelled = await caller.jobs.Cancel(jobs_pb2.CancelRequest(job_id=job.id), timeout=30)
    assert (cancelled.state, cancelled.queries_done) == (jobs_pb2.JOB_STATE_CANCELLED, 4)
    await agent.until(lambda: len(agent.stops) == 1)
    again = await caller.jobs.Cancel(jobs_pb2.CancelRequest(job_id=job.id), timeout=30)
    assert again == cancelled


@pytest.mark.usefixtures("agent")
async def test_list_is_newest_first_and_by_state(caller: Caller) -> None:
    jobs = [await caller.submit() for _ in range(3)]
    for job in jobs:
        await caller.watched(job.id)
    listed = await caller.jobs.List(jobs_pb2.ListRequest())
    assert [job.id for job in listed.jobs] == [job.id for job in reversed(jobs)]
    newest = await caller.jobs.List(jobs_pb2.ListRequest(limit=1))
    assert [job.id for job in newest.jobs] == [jobs[-1].id]
    queued = await caller.jobs.List(jobs_pb2.ListRequest(states=[jobs_pb2.JOB_STATE_QUEUED]))
    assert not queued.jobs


@pytest.mark.parametrize("method", ["Get", "Watch", "Cancel"])
async def test_unknown_job_is_not_found(caller: Caller, method: str) -> None:
    request = jobs_pb2.GetRequest(job_id="nobody").SerializeToString()
    call = raw_unary(caller.channel, f"/synergai.v1.Jobs/{method}")(request, timeout=30)
    assert (await caller.failure(call)).code() is grpc.StatusCode.NOT_FOUND


async def test_restarted_gateway_finishes_accepted_jobs(
    config: GatewaySettings, connect: Connect
) -> None:
    async with Gateway(config) as first:
        caller, agent = await connect(first)
        done = await caller.submit(key="done")
        await caller.watched(done.id)
        reported = asyncio.Event()

        async def a_part(assignment: hub_pb2.Assignment) -> None:
            await agent.progress(assignment, done=4)
            reported.set()

        agent.answer = a_part
        half = await caller.submit(key="half")
        waiting = await caller.submit(qos_s=60.0, key="waiting")
        await reported.wait()
        await caller.recorded(half.id, 4)
        before = agent.assignments[-1].id
    async with Gateway(config) as second:
        caller, agent = await connect(second)
        again = await caller.submit(key="half")
        assert again.id == half.id
        last = (await caller.watched(half.id))[-1]
        assert (4, 6) in [(each.first, each.count) for each in agent.assignments]
        assert [(e.first, e.count) for e in last.executions] == [(0, 10)]
        assert (await caller.watched(waiting.id))[-1].state == jobs_pb2.JOB_STATE_SUCCEEDED
        earlier = await caller.jobs.Get(jobs_pb2.GetRequest(job_id=done.id))
        assert earlier.state == jobs_pb2.JOB_STATE_SUCCEEDED
        assert min(assignment.id for assignment in agent.assignments) > before


async def test_stopping_gateway_drains_requests_and_refuses_new_ones(
    config: GatewaySettings, connect: Connect
) -> None:
    async with Gateway(replace(config, drain_s=60.0)) as gateway:
        caller, agent = await connect(gateway)
        may_answer = asyncio.Event()

        async def later(assignment: hub_pb2.Assignment) -> None:
            await may_answer.wait()
            await agent.complete(assignment)

        agent.answer = later
        under_way = asyncio.ensure_future(caller.oip.ModelInfer(infer_request(), timeout=30))
        await agent.until(lambda: len(agent.assignments) == 1)
        gateway.stop()
        gateway.stop()
        stopped = asyncio.create_task(gateway.wait_stopped())
        await caller.refused()
        failure = await caller.failure(caller.oip.ModelInfer(infer_request(), timeout=30))
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        may_answer.set()
        assert (await under_way).raw_output_contents
        await stopped


async def test_recorded_events_replayed_give_the_same_commands(
    config: GatewaySettings, connect: Connect, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    async with Gateway(replace(config, event_log=log)) as gateway:
        caller, _ = await connect(gateway)
        job = await caller.submit(50, qos_s=5.0)
        for _ in range(5):
            await caller.oip.ModelInfer(infer_request(), timeout=30)
        await caller.watched(job.id)
    steps = list(replay(log, time.thread_time))
    assert any(step.recorded for step in steps)
    for step in steps:
        assert step.replayed == step.recorded, step.event
