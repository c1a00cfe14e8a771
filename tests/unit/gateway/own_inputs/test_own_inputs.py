"""Jobs over inputs of their clients: what workers get, and what is recorded."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from gateway.entry.access.caller import UNRESTRICTED
from gateway.fleet.worker import ConnectedWorker, Order, SendInputs
from gateway.jobs import input_feed, submitted
from gateway.jobs.input_feed import TensorRoom
from synergai.core.scheduling.events import Stop
from synergai.domain import EngineName, Job, JobId
from synergai.errors import InvalidInput
from synergai.jobs import JobSpec, JobState
from synergai.oip import inference_pb2 as oip
from synergai.v1 import hub_pb2, jobs_pb2
from synergai.wire.validation import SAMPLE
from synergai.wire.work_transport import SentOver
from tests.unit.gateway.own_inputs.conftest import SPEC, OwnDataHarness, own_data
from tests.waiting import turns, until


async def test_inputs_are_sent_and_results_stored_before_they_count(
    harness: OwnDataHarness,
) -> None:
    worker, status, assignment, [inputs] = await harness.run_job(3)
    assert [jobs_pb2.Input.FromString(data).name for data in inputs.inputs] == ["n0", "n1", "n2"]
    harness.report(worker, assignment, 2, failed=[1])
    await harness.flush_journal()
    assert [(r.index, r.name, r.error) for r in await harness.read(status.id)] == [
        (0, "n0", ""),
        (1, "n1", "bad"),
    ]
    harness.report(worker, assignment, 3, responses=1, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    ended = await harness.jobs.get(UNRESTRICTED, status.id)
    assert (ended.state, ended.queries_done, ended.failures) == (JobState.SUCCEEDED, 3, 1)
    assert [result.index for result in await harness.read(status.id, 2)] == [2]
    with pytest.raises(InvalidInput, match="beyond"):
        await harness.read(status.id, 4)


async def test_input_does_not_stand_for_a_sample_of_the_worker(harness: OwnDataHarness) -> None:
    *_, [inputs] = await harness.run_job(1, parameter=SAMPLE)
    [found] = map(jobs_pb2.Input.FromString, inputs.inputs)
    assert found.name == "n0"
    assert not oip.ModelInferRequest.FromString(found.request).parameters


async def test_follower_gets_results_at_intervals_and_the_last_ones_at_once(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.calls.servicers.jobs.PROGRESS_INTERVAL_S", 3600.0)
    worker, status, assignment, _ = await harness.run_job(3)
    batches = harness.results.read(UNRESTRICTED, status.id, 0, follow=True)
    async with asyncio.timeout(30), aclosing(batches):
        harness.report(worker, assignment, 1)
        assert len((await anext(batches)).results) == 1
        harness.report(worker, assignment, 2, responses=1)
        await harness.flush_journal()
        following = asyncio.ensure_future(anext(batches))
        for _ in range(3):
            await harness.flush_journal()
        assert not following.done()
        harness.report(worker, assignment, 3, responses=1, outcome=hub_pb2.OUTCOME_COMPLETED)
        assert len((await following).results) == 2
        assert [batch async for batch in batches] == []


async def test_worker_has_few_inputs_at_a_time(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_feed, "PORTION_BYTES", 3000)
    monkeypatch.setattr(input_feed, "WORKER_BYTES", 8000)
    worker = harness.add_worker()
    await harness.upload(40, size=1000)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    received, done = 0, 0
    [assignment], inputs = await harness.next_orders(worker)
    while True:
        received += sum(len(each.inputs) for each in inputs)
        assert received - done <= 12
        if received == 40:
            break
        harness.report(worker, assignment, received, responses=received - done)
        done = received
        await harness.flush_journal()
        _, inputs = await harness.next_orders(worker)
    assert worker.input_bytes <= 12_000
    harness.report(worker, assignment, 40, responses=40 - done, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    assert worker.input_bytes == 0


async def test_inputs_on_the_way_to_all_workers_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_feed, "PORTION_BYTES", 1)  # as if each input were large
    monkeypatch.setattr(submitted, "UNSENT_BYTES", 5000)
    may_write = asyncio.Event()
    sent: list[bytes] = []
    writing: dict[str, list[bytes]] = {}
    workers: list[ConnectedWorker] = []

    def inputs_of(orders: list[Order]) -> list[bytes]:
        return [data for order in orders if isinstance(order, SendInputs) for data in order.inputs]

    def on_the_way() -> int:
        queued = [inputs_of(worker.orders._items) for worker in workers]
        return sum(len(data) for each in (*queued, *writing.values()) for data in each)

    async def write(worker: ConnectedWorker) -> None:
        while orders := await worker.orders.get_batch():
            writing[worker.id] = inputs_of(orders)
            assert on_the_way() <= 5000
            if writing[worker.id]:
                await may_write.wait()
            sent.extend(writing.pop(worker.id))

    async with own_data(tmp_path) as harness, asyncio.TaskGroup() as group:
        for number in range(8):
            workers.append(harness.add_worker(f"w{number}"))
            group.create_task(write(workers[-1]))
            await harness.upload(2, size=1000, upload_id=f"up{number}")
            await harness.jobs.submit(UNRESTRICTED, structs.replace(SPEC, upload_id=f"up{number}"))
        await until(lambda: on_the_way() > 4000)
        await turns(50)
        assert on_the_way() <= 5000
        may_write.set()
        await until(lambda: len(sent) == 16)
        for worker in workers:
            worker.orders.close()


@pytest.mark.parametrize("upload_id", ["", "up"])
async def test_estimates_count_the_transfer_of_own_inputs_and_not_of_samples(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch, upload_id: str
) -> None:
    scheduled: list[Job] = []
    submit = harness.dispatcher.submit

    def note(job: Job, *arguments: Any, **options: Any) -> None:
        scheduled.append(job)
        submit(job, *arguments, **options)

    monkeypatch.setattr(harness.dispatcher, "submit", note)
    harness.add_worker()
    await harness.upload(3)
    await harness.jobs.submit(
        UNRESTRICTED,
        JobSpec(engine=SPEC.engine, queries=0 if upload_id else 3, upload_id=upload_id),
    )
    [job] = scheduled
    assert job.with_tensors == bool(upload_id)


async def test_worker_behind_a_slow_link_has_what_passes_it_soon(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    worker.measure_link = lambda: SentOver(12_000.0, 0.01)
    await harness.upload(40, size=1000)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    received, done = 0, 0
    [assignment], inputs = await harness.next_orders(worker)
    while received + sum(len(each.inputs) for each in inputs) < 40:
        received += sum(len(each.inputs) for each in inputs)
        assert received - done <= 7
        harness.report(worker, assignment, received, responses=received - done)
        done = received
        await harness.flush_journal()
        _, inputs = await harness.next_orders(worker)


async def test_worker_gets_no_more_inputs_of_an_assignment_that_it_is_to_stop(
    harness: OwnDataHarness,
) -> None:
    worker = harness.add_worker()
    worker.measure_link = lambda: SentOver(12_000.0, 0.01)
    await harness.upload(40, size=1000)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], inputs = await harness.next_orders(worker)
    harness.dispatcher._execute(Stop(assignment.id, worker.id), 0.0)
    harness.report(worker, assignment, sum(len(each.inputs) for each in inputs))
    await harness.flush_journal()
    for _ in range(3):  # an input is read in a thread
        await asyncio.to_thread(lambda: None)
        await turns()
    sent = [order for order in harness.orders(worker) if isinstance(order, SendInputs)]
    assert not sent


async def test_inputs_of_a_stopped_assignment_leave_room_for_another_job(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_feed, "WORKER_BYTES", 8000)
    worker = harness.add_worker()
    await harness.upload(20, size=1000)
    await harness.upload(20, size=1000, upload_id="urgent")
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], _ = await harness.next_orders(worker)
    assert worker.input_bytes > 7000  # there is hardly room
    urgent = JobSpec(engine=SPEC.engine, queries=0, upload_id="urgent", priority=9)
    await harness.jobs.submit(UNRESTRICTED, urgent)
    harness.report(worker, assignment, 0, outcome=hub_pb2.OUTCOME_STOPPED)
    assert worker.input_bytes == 0


async def test_input_at_which_a_host_died_runs_alone_next(harness: OwnDataHarness) -> None:
    worker, _, assignment, [inputs] = await harness.run_job(4)
    assert not inputs.suspects
    failed, died = hub_pb2.OUTCOME_FAILED, hub_pb2.FAULT_DIED_AT_INPUT
    harness.report(worker, assignment, 1, outcome=failed, fault=died)
    await harness.flush_journal()
    [again], [inputs] = await harness.next_orders(worker)
    assert (again.first, list(inputs.suspects)) == (1, [0])


async def test_too_many_failures_fail_the_job(harness: OwnDataHarness) -> None:
    spec = structs.replace(SPEC, max_failures=1)
    worker, status, assignment, _ = await harness.run_job(4, spec)
    harness.report(worker, assignment, 1, failed=[0])
    await harness.flush_journal()
    assert (await harness.jobs.get(UNRESTRICTED, status.id)).state is JobState.RUNNING
    harness.report(worker, assignment, 3, failed=[1, 2], responses=2)
    await harness.flush_journal()
    ended = await harness.jobs.get(UNRESTRICTED, status.id)
    assert (ended.state, ended.reason) == (JobState.FAILED, "more than 1 input failed")
    assert len(await harness.read(status.id)) == 3


async def test_results_that_were_stored_but_not_counted_are_not_stored_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash after the results are durable, and before the journal counts their queries."""

    class Crash(Exception):
        pass

    async with own_data(tmp_path) as harness:
        worker, status, assignment, _ = await harness.run_job(4)
        harness.report(worker, assignment, 1)
        await harness.flush_journal()
        with monkeypatch.context() as patch:
            patch.setattr("gateway.journal.operations.record_execution", Mock(side_effect=Crash))
            harness.report(worker, assignment, 3, responses=2)
            with pytest.raises(Exception, match="journal"):
                await harness.flush_journal()
    async with own_data(tmp_path) as harness:
        assert await harness.jobs.restore() == 1
        worker = harness.add_worker()
        assert (await harness.jobs.get(UNRESTRICTED, status.id)).queries_done == 1
        shown = await harness.read(status.id)
        [assignment], [inputs] = await harness.next_orders(worker)
        assert (assignment.first, len(inputs.inputs)) == (1, 3)
        harness.report(worker, assignment, 3, failed=[0], outcome=hub_pb2.OUTCOME_COMPLETED)
        await harness.flush_journal()
        ended = await harness.jobs.get(UNRESTRICTED, status.id)
        results = await harness.read(status.id)
        assert [result.index for result in results] == [0, 1, 2, 3]
        assert results[:3] == shown
        assert (ended.state, ended.failures) == (JobState.SUCCEEDED, 0)


def job(name: str, priority: int = 0) -> Job:
    return Job(id=JobId(name), engine=EngineName("net"), queries=1, arrival=0.0, priority=priority)


async def waiting(room: TensorRoom, *sizes: int) -> list[asyncio.Task[None]]:
    """Let a job wait for each of these sizes, in this order."""
    tasks = [asyncio.create_task(room.take(job(f"waiting-{size}"), size)) for size in sizes]
    await turns()
    return tasks


async def test_most_urgent_job_gets_the_next_room() -> None:
    room, order = TensorRoom(10), list[str]()

    async def take(name: str, priority: int) -> None:
        await room.take(job(name, priority), 6)
        order.append(name)

    await room.take(job("first"), 6)
    tasks = [asyncio.create_task(take("low", 0)), asyncio.create_task(take("high", 5))]
    await turns()
    assert not room.try_take(1)  # others wait
    room.give(6)
    await turns()
    assert order == ["high"]
    room.give(6)
    await asyncio.wait(tasks)
    assert order == ["high", "low"]


async def test_one_query_may_need_more_than_there_is() -> None:
    room = TensorRoom(10)
    await room.take(job("large"), 50)
    assert not room.try_take(1)
    room.give(50)
    assert room.try_take(10)


async def test_job_that_leaves_while_it_waits_takes_no_room() -> None:
    room = TensorRoom(10)
    await room.take(job("first"), 10)
    gone, granted = await waiting(room, 9, 10)
    gone.cancel()
    await turns()
    room.give(10)
    granted.cancel()  # after it was granted, before it knows
    await asyncio.wait([gone, granted])
    assert room.used_bytes == 0


async def test_job_that_leaves_lets_smaller_ones_behind_it_pass_at_once() -> None:
    room = TensorRoom(10)
    await room.take(job("first"), 6)
    large, small = await waiting(room, 8, 3)
    large.cancel()
    await asyncio.wait([large])
    await turns()
    assert small.done()
    assert room.try_take(1)
