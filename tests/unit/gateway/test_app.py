"""The small parts of a gateway: outboxes, admission, the catalogue, statuses, settings."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.admission.limits import Admission
from gateway.clock import Clock
from gateway.fleet.catalogue import Catalogue
from gateway.jobs.executions import Execution
from gateway.jobs.status import JobStatus, JobTracker
from gateway.send_queue import SendQueue
from gateway.servicers.jobs import job_to_proto, spec_from_proto, spec_to_proto
from gateway.settings import GatewaySettings
from synergai.domain import (
    AssignmentId,
    Configuration,
    Engine,
    EngineName,
    JobId,
    JobSpec,
    JobState,
    TensorSpec,
    WorkerId,
)
from synergai.errors import (
    EngineNotFound,
    EngineUnusable,
    InvalidInput,
    Overloaded,
    Unavailable,
)
from synergai.scheduling.events import Assignment

if TYPE_CHECKING:
    from pathlib import Path

W1, W2 = WorkerId("w1"), WorkerId("w2")


# --- outbox -----------------------------------------------------------------------------------


async def test_outbox_gives_all_that_came_in_one_turn_at_once() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    taking = asyncio.create_task(outbox.get_batch())
    for number in range(3):
        outbox.put(number)
    assert await taking == [0, 1, 2]


async def test_closed_outbox_gives_what_waits_and_then_nothing() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    outbox.put(1)
    outbox.close()
    outbox.put(2)
    assert await outbox.get_batch() == [1]
    assert await outbox.get_batch() == []


async def test_outbox_closed_with_an_error_raises_it_at_once() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    outbox.put(1)
    outbox.close(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await outbox.get_batch()


async def test_outbox_of_a_peer_that_does_not_read_is_bounded() -> None:
    outbox: SendQueue[int] = SendQueue(2)
    for number in range(5):
        outbox.put(number)
    with pytest.raises(Overloaded):
        await outbox.get_batch()


async def test_outbox_gathers_for_as_long_as_items_keep_coming() -> None:
    outbox: SendQueue[int] = SendQueue(10)

    async def put_one_every_third_turn() -> None:
        for number in range(4):
            for _ in range(3):
                await asyncio.sleep(0)
            outbox.put(number)

    putting = asyncio.create_task(put_one_every_third_turn())
    assert await outbox.collect_until_idle(turns=4, timeout_s=60.0) == [0, 1, 2, 3]
    await putting


async def test_outbox_does_not_gather_for_longer_than_it_may() -> None:
    outbox: SendQueue[int] = SendQueue(10)
    outbox.put(1)
    assert await outbox.collect_until_idle(turns=10**9, timeout_s=0.0) == [1]


# --- admission --------------------------------------------------------------------------------


async def test_admission_bounds_requests_and_bytes_but_lets_one_large_request_in() -> None:
    admission = Admission(max_requests=2, max_bytes=10)
    admission.acquire(100)
    with pytest.raises(Overloaded, match="bytes"):
        admission.acquire(1)
    admission.release(100)
    admission.acquire(5)
    admission.acquire(5)
    with pytest.raises(Overloaded, match="requests"):
        admission.acquire(0)


async def test_admission_is_idle_when_everybody_has_left() -> None:
    admission = Admission(2, 10)
    admission.acquire(1)
    waiting = asyncio.create_task(admission.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    admission.release(1)
    await waiting


# --- catalogue --------------------------------------------------------------------------------


def test_engine_is_found_while_somebody_serves_it(engine: Engine) -> None:
    catalogue = Catalogue()
    with pytest.raises(EngineNotFound):
        catalogue.find("echo")
    catalogue.update(W1, engine)
    assert catalogue.find("echo") == engine
    catalogue.remove_worker(W1)
    with pytest.raises(Unavailable):
        catalogue.find("echo")
    catalogue.check_known("echo")


def test_engine_that_everybody_has_with_a_fault_is_unusable(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, replace(engine, fault="truncated"))
    with pytest.raises(EngineUnusable, match="truncated"):
        catalogue.find("echo")
    catalogue.update(W2, engine)
    assert catalogue.find("echo") == engine


def test_second_worker_with_another_engine_of_the_name_is_not_believed(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, engine)
    other = replace(engine, inputs=(TensorSpec("z", "INT8", (1,)),))
    assert "differs" in catalogue.update(W2, other)[W2].fault
    assert catalogue.find("echo") == engine


def test_worker_is_believed_once_the_one_that_it_differs_from_is_gone(engine: Engine) -> None:
    catalogue = Catalogue()
    newer = replace(engine, version="2")
    catalogue.update(W1, engine)
    catalogue.update(W2, newer)
    assert catalogue.remove_worker(W1) == [{W2: newer}]
    assert catalogue.find("echo") == newer


def test_worker_that_comes_round_to_another_is_believed_with_it(engine: Engine) -> None:
    catalogue = Catalogue()
    newer = replace(engine, version="2")
    catalogue.update(W1, engine)
    catalogue.update(W2, newer)
    assert catalogue.update(W1, newer) == {W1: newer, W2: newer}


def test_engines_of_earlier_times_are_known() -> None:
    with pytest.raises(Unavailable):
        Catalogue([EngineName("echo")]).find("echo")


# --- a job's status ---------------------------------------------------------------------------


def a_status(state: JobState = JobState.QUEUED, **fields: object) -> JobStatus:
    values: dict[str, object] = {
        "id": JobId("a"),
        "spec": JobSpec(engine=EngineName("echo"), queries=10, qos=5.0),
        "state": state,
        "as_of": 103.0,
        "submitted_at": 100.0,
    }
    return JobStatus(**(values | fields))  # type: ignore[arg-type]  # a test's own fields


@pytest.mark.parametrize(
    ("status", "violated", "excess_s"),
    [
        (a_status(), False, 0.0),
        (a_status(as_of=106.0), True, 1.0),
        (a_status(JobState.SUCCEEDED, finished_at=104.0, as_of=999.0), False, 0.0),
        (a_status(JobState.SUCCEEDED, finished_at=107.5), True, 2.5),
        (a_status(JobState.REJECTED, finished_at=100.1), True, 0.0),
        (a_status(JobState.FAILED, finished_at=101.0), True, 0.0),
        (a_status(JobState.CANCELLED, finished_at=101.0), False, 0.0),
        (
            a_status(JobState.FAILED, finished_at=999.0, spec=JobSpec(engine=EngineName("echo"))),
            False,
            0.0,
        ),
    ],
)
def test_violation_is_a_deadline_missed_or_out_of_reach(
    status: JobStatus, violated: bool, excess_s: float
) -> None:
    assert (status.violated, status.excess_s) == (violated, excess_s)


def test_times_are_counted_from_submission_and_first_dispatch() -> None:
    status = a_status(JobState.SUCCEEDED, dispatched_at=101.5, finished_at=104.0)
    assert (status.waited_s, status.actual_s) == (1.5, 2.5)
    assert a_status().waited_s == 3.0
    assert a_status().actual_s is None


def an_assignment(count: int, *, probe: bool = False) -> Assignment:
    return Assignment(
        id=AssignmentId(1),
        job_id=JobId("a"),
        engine=EngineName("echo"),
        worker_id=W1,
        configuration=Configuration(1),
        first=10 - count,
        count=count,
        estimate_s=0.0 if probe else 2.0,
        probe=probe,
    )


def test_estimate_after_a_probe_counts_from_the_first_dispatch() -> None:
    clock = Clock()
    tracker = JobTracker(a_status(submitted_at=clock.to_unix(90.0)), clock)
    assert tracker.record_dispatch(an_assignment(10, probe=True), 100.0)
    assert tracker.status.estimated_s is None
    execution = Execution(
        worker_id=W1, configuration=Configuration(1), first=0, count=4, seconds=3.0
    )
    tracker.record_execution(an_assignment(10), execution)
    assert tracker.record_dispatch(an_assignment(6), 103.0)
    assert tracker.status.estimated_s == pytest.approx(5.0)
    assert not tracker.record_dispatch(an_assignment(6), 104.0)
    assert tracker.status.waited_s == pytest.approx(10.0)


async def test_slow_watcher_sees_the_latest_and_the_end() -> None:
    tracker = JobTracker(a_status(), Clock())
    watch = tracker.watch()
    assert (await anext(watch)).state is JobState.QUEUED
    for number in range(1, 4):
        execution = Execution(
            worker_id=W1, configuration=Configuration(), first=0, count=number, seconds=1.0
        )
        tracker.record_execution(an_assignment(10), execution)
    assert (await anext(watch)).queries_done == 3
    tracker.record_end(JobState.CANCELLED, 5.0)
    assert [status.state async for status in watch] == [JobState.CANCELLED]


# --- conversion -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [2.5, math.inf])
def test_specification_survives_the_wire(qos: float) -> None:
    spec = JobSpec(engine=EngineName("echo"), queries=7, qos=qos, priority=9, tenant="lab")
    assert spec_from_proto(spec_to_proto(spec)) == spec


def test_status_on_the_wire_leaves_out_what_is_not_known() -> None:
    message = job_to_proto(a_status())
    assert not message.HasField("estimated_s")
    assert not message.HasField("actual_s")
    assert not message.HasField("finished_at")
    ended = job_to_proto(
        a_status(JobState.SUCCEEDED, dispatched_at=101.0, finished_at=104.5, estimated_s=3.0)
    )
    assert (ended.estimated_s, ended.actual_s) == (3.0, 3.5)
    assert ended.finished_at.ToNanoseconds() == 104_500_000_000


# --- settings ---------------------------------------------------------------------------------


def test_settings_come_from_environment_and_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SYNERGAI_GATEWAY_POLICY", "fifo")
    monkeypatch.setenv("SYNERGAI_GATEWAY_STATE", str(tmp_path))
    settings = GatewaySettings.load({"infeasible": "reject"})
    assert (settings.scheduling.policy, settings.scheduling.infeasible) == ("fifo", "reject")
    assert settings.state == tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [("listen", "nowhere"), ("heartbeat_s", "-1"), ("max_jobs", "0"), ("log_level", "loud")],
)
def test_impossible_setting_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name.replace("_", "-")):
        GatewaySettings.load({name: value})
