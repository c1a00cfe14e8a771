"""Jobs over uploads: their files, their inputs in portions, and what survives a crash."""

import asyncio
import errno
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.access.caller import UNRESTRICTED
from gateway.access.table import AccessTable, Quota
from gateway.fleet.worker import ConnectedWorker, RunAssignment, SendInputs
from gateway.jobs import input_feed, own_inputs, reopening, uploads
from gateway.jobs.input_feed import JobData
from gateway.jobs.own_inputs import OwnInputs
from gateway.jobs.read_ahead import AHEAD_BYTES
from gateway.jobs.results import JobResults
from gateway.jobs.retention import Retention
from gateway.jobs.tracker import ProgressRate
from gateway.jobs.uploads import InputUploads, Receipt
from gateway.journal.errors import StoreFull
from gateway.journal.job_record import JobRecord
from gateway.journal.journal import Journal
from gateway.records import log as record_log
from gateway.records.log import DamagedLog, Record, RecordLog
from gateway.records.store import DataKey, DataStore, OpenLog
from synergai.domain import EngineName, Job, JobSpec, JobState
from synergai.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Unavailable,
    UploadNotFound,
    UploadUsed,
)
from synergai.oip import inference_pb2 as oip
from synergai.protocol.tcp_info import SentOver
from synergai.protocol.validation import SAMPLE
from synergai.runtime.backoff import Backoff
from synergai.scheduling.events import Assignment, Stop
from synergai.v1 import hub_pb2, jobs_pb2
from tests.unit.gateway.conftest import GatewayHarness
from tests.waiting import turns

SPEC = JobSpec(engine=EngineName("echo"), queries=0, upload_id="up")
RESPONSE = oip.ModelInferResponse(model_name="echo").SerializeToString()


class OwnDataHarness(GatewayHarness):
    """A gateway without its servers that runs jobs over uploads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.results = JobResults(self.jobs, self.store, self.journal.confirm)

    async def upload(
        self,
        count: int,
        *,
        first: int = 0,
        upload_id: str = "up",
        size: int = 0,
        tenant: str = "",
        parameter: str = "any",
    ) -> list[int]:
        """Upload inputs; return the receipts."""

        async def messages() -> AsyncIterator[bytes]:
            yield jobs_pb2.UploadRequest(upload_id=upload_id).SerializeToString()
            for index in range(first, first + count):
                request = oip.ModelInferRequest(id="i" * size)
                request.parameters[parameter].int64_param = index
                one = jobs_pb2.Input(name=f"n{index}", request=request.SerializeToString())
                yield jobs_pb2.UploadRequest(first=index, inputs=[one]).SerializeToString()

        receipts = self.uploads.upload(tenant, messages(), lambda: None)
        return [receipt.stored async for receipt in receipts]

    async def flush_journal(self) -> None:
        """Wait for all journal operations, and for the end of a job that follows them."""
        for _ in range(3):
            await super().flush_journal()

    async def read(self, job_id: str, cursor: int = 0) -> list[jobs_pb2.JobResult]:
        """Return the results so far."""
        return [
            jobs_pb2.JobResult.FromString(data)
            async for batch in self.results.read(UNRESTRICTED, job_id, cursor, follow=False)
            for data in batch.results
        ]

    async def next_orders(
        self, worker: ConnectedWorker
    ) -> tuple[list[Assignment], list[SendInputs]]:
        """Return the assignments and inputs that are sent next, once there are inputs."""
        assignments: list[Assignment] = []
        async with asyncio.timeout(30):
            while True:
                orders = self.orders(worker)
                assignments += [o.assignment for o in orders if isinstance(o, RunAssignment)]
                if inputs := [o for o in orders if isinstance(o, SendInputs)]:
                    return assignments, inputs
                await asyncio.sleep(0)

    def report(
        self,
        worker: ConnectedWorker,
        assignment: Assignment,
        done: int,
        failed: Sequence[int] = (),
        responses: int | None = None,
        outcome: hub_pb2.Outcome.ValueType | None = None,
        fault: hub_pb2.Fault.ValueType = hub_pb2.FAULT_UNSPECIFIED,
    ) -> None:
        """Report the progress of an assignment, or its end."""
        progress = hub_pb2.Progress(
            assignment_id=assignment.id,
            done=done,
            failures=[hub_pb2.InputFailure(query=query, detail="bad") for query in failed],
        )
        count = done if responses is None else responses
        answers = [b"" if query in failed else RESPONSE for query in range(done - count, done)]
        if outcome is None:
            self.intake.apply_progress(worker, progress, answers)
        else:
            ended = hub_pb2.Ended(progress=progress, outcome=outcome, fault=fault)
            self.intake.apply_ended(worker, ended, answers)


@asynccontextmanager
async def own_data(directory: Path) -> AsyncIterator[OwnDataHarness]:
    """Open a gateway's state; leaving the context is a crash as far as the data is concerned."""
    journal = Journal(directory)
    harness = OwnDataHarness(journal, directory / "data")
    await harness.store.load()
    try:
        yield harness
    finally:
        harness.dispatcher.close()
        for job in list(harness.jobs._unfinished.values()):
            if job.feed is not None:
                await job.feed.close()
        await harness.jobs.close()
        await journal.close()
        await harness.store.close()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[OwnDataHarness]:
    async with own_data(tmp_path) as harness:
        yield harness


async def test_upload_is_resumed_where_it_ended(harness: OwnDataHarness) -> None:
    assert (await harness.upload(3))[-1] == 3
    assert (await harness.upload(0)) == [3]
    assert (await harness.upload(4, first=1))[-1] == 5
    with pytest.raises(InvalidInput, match="continue with input 5"):
        await harness.upload(1, first=6)


async def test_inputs_that_are_sent_again_must_be_those_that_are_stored(
    harness: OwnDataHarness,
) -> None:
    harness.add_worker()
    await harness.upload(3)
    assert set(await harness.upload(3)) == {3}
    with pytest.raises(Conflict, match="input 1 of upload 'up' is stored already, and differs"):
        await harness.upload(1, first=1, size=9)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    with pytest.raises(Conflict, match=r"input 2 .* differs"):
        await harness.upload(1, first=2, size=9)
    assert set(await harness.upload(3)) == {3}


async def test_refusal_of_a_cancelled_upload_is_not_logged(
    harness: OwnDataHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, proceed = threading.Event(), threading.Event()

    def refuse(_opened: object, _batch: object) -> int:
        started.set()
        proceed.wait(30)
        raise InvalidInput("a gap")

    monkeypatch.setattr(uploads, "_store", refuse)
    uploading = asyncio.create_task(harness.upload(1))
    await asyncio.to_thread(started.wait, 30)
    uploading.cancel()
    await asyncio.sleep(0)
    proceed.set()
    await asyncio.wait([uploading])
    assert uploading.cancelled()
    del uploading
    gc.collect()  # asyncio would log an exception that was not retrieved
    assert not caplog.records


async def test_job_needs_its_upload_as_it_is_stored(harness: OwnDataHarness) -> None:
    harness.add_worker()
    with pytest.raises(UploadNotFound):
        await harness.jobs.submit(UNRESTRICTED, SPEC)
    await harness.upload(3)
    wrong = JobSpec(engine=SPEC.engine, queries=4, upload_id="up")
    with pytest.raises(InvalidInput, match="has 3 inputs, not 4"):
        await harness.jobs.submit(UNRESTRICTED, wrong)
    assert (await harness.upload(2, first=3))[-1] == 5
    status = await harness.jobs.submit(UNRESTRICTED, SPEC, "key")
    assert status.spec.queries == 5
    again = await harness.jobs.submit(UNRESTRICTED, SPEC, "key")
    assert again.id == status.id
    with pytest.raises(UploadUsed):
        await harness.jobs.submit(UNRESTRICTED, SPEC)
    with pytest.raises(UploadUsed):
        await harness.upload(1, first=5)
    assert (await harness.upload(2, first=3))[-1] == 5


async def test_inputs_are_sent_and_results_stored_before_they_count(
    harness: OwnDataHarness,
) -> None:
    worker = harness.add_worker()
    await harness.upload(3)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], [inputs] = await harness.next_orders(worker)
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
    assert (harness.own.answered, harness.own.failed) == (2, 1)
    with pytest.raises(InvalidInput, match="beyond"):
        await harness.read(status.id, 4)


async def test_input_does_not_stand_for_a_sample_of_the_worker(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    await harness.upload(1, parameter=SAMPLE)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    _, [inputs] = await harness.next_orders(worker)
    [found] = map(jobs_pb2.Input.FromString, inputs.inputs)
    assert found.name == "n0"
    assert not oip.ModelInferRequest.FromString(found.request).parameters


async def test_follower_gets_results_at_intervals_and_the_last_ones_at_once(
    harness: OwnDataHarness,
) -> None:
    harness.jobs.progress_rate = ProgressRate(min_interval_s=3600.0)
    worker = harness.add_worker()
    await harness.upload(3)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], _ = await harness.next_orders(worker)
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


async def test_cancelled_use_of_a_log_waits_until_it_is_open(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is opened cuts what it does not know, such as what another use has written."""
    opening, go_on = threading.Event(), threading.Event()
    open_log = RecordLog._open

    def slow(log: RecordLog) -> None:
        opening.set()
        assert go_on.wait(30)
        open_log(log)

    key = DataKey("", "uploads", "up")
    monkeypatch.setattr(RecordLog, "_open", slow)
    cancelled = asyncio.create_task(harness.store.open(key, create=True))
    assert await asyncio.to_thread(opening.wait, 30)
    cancelled.cancel()
    other = asyncio.create_task(harness.store.open(key, create=True))
    await turns(10)
    assert not cancelled.done()
    assert not other.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    opened = await other
    assert opened.users == 1
    await harness.store.release(opened)
    assert await harness.store.delete(key)


async def test_job_has_the_inputs_that_were_being_written_when_it_was_submitted(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_worker()
    await harness.upload(2)
    writing, go_on = threading.Event(), threading.Event()
    append = RecordLog.append

    def slow(log: RecordLog, records: Iterable[Record]) -> None:
        if new := list(records):
            writing.set()
            assert go_on.wait(30)
            append(log, new)

    monkeypatch.setattr(RecordLog, "append", slow)
    receipts = asyncio.create_task(harness.upload(1, first=2))
    assert await asyncio.to_thread(writing.wait, 30)
    submitted = asyncio.create_task(harness.jobs.submit(UNRESTRICTED, SPEC))
    await harness.flush_journal()
    go_on.set()
    assert (await receipts)[-1] == 3
    assert (await submitted).spec.queries == 3


async def test_logs_that_cannot_be_used_are_not_kept_open(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_worker()
    await harness.upload(2)

    def damaged(*_args: object) -> None:
        raise DamagedLog("damaged")

    monkeypatch.setattr(own_inputs, "ResultLog", damaged)
    with pytest.raises(DamagedLog):
        await harness.jobs.submit(UNRESTRICTED, SPEC)
    for key in harness.store.stored():
        assert await harness.store.delete(key)


async def test_input_at_which_a_host_died_runs_alone_next(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    await harness.upload(4)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], [inputs] = await harness.next_orders(worker)
    assert not inputs.suspects
    failed, died = hub_pb2.OUTCOME_FAILED, hub_pb2.FAULT_DIED_AT_INPUT
    harness.report(worker, assignment, 1, outcome=failed, fault=died)
    await harness.flush_journal()
    [again], [inputs] = await harness.next_orders(worker)
    assert (again.first, list(inputs.suspects)) == (1, [0])


async def test_too_many_failures_fail_the_job(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    await harness.upload(4)
    status = await harness.jobs.submit(UNRESTRICTED, JobSpec(
        engine=SPEC.engine, queries=4, upload_id="up", max_failures=1
    ))  # fmt: skip
    [assignment], _ = await harness.next_orders(worker)
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

    def crash(*_args: object, **_fields: object) -> None:
        raise Crash

    async with own_data(tmp_path) as harness:
        worker = harness.add_worker()
        await harness.upload(4)
        status = await harness.jobs.submit(UNRESTRICTED, SPEC)
        [assignment], _ = await harness.next_orders(worker)
        harness.report(worker, assignment, 1)
        await harness.flush_journal()
        with monkeypatch.context() as patch:
            patch.setattr("gateway.journal.operations.record_execution", crash)
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


async def test_job_whose_counted_results_are_missing_fails(tmp_path: Path) -> None:
    async with own_data(tmp_path) as harness:
        worker = harness.add_worker()
        await harness.upload(4)
        status = await harness.jobs.submit(UNRESTRICTED, SPEC)
        [assignment], _ = await harness.next_orders(worker)
        harness.report(worker, assignment, 2)
        await harness.flush_journal()
    for path in (tmp_path / "data/tenant-/results" / status.id).glob("*.records"):
        path.unlink()
    async with own_data(tmp_path) as harness:
        assert await harness.jobs.restore() == 0
        ended = await harness.jobs.get(UNRESTRICTED, status.id)
        assert (ended.state, "missing" in ended.reason) == (JobState.FAILED, True)


class UnreadableStore:
    """Makes logs fail to open while it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.tried = asyncio.Event()
        open_log = DataStore.open

        async def open_or_fail(store: DataStore, key: DataKey, *, create: bool = False) -> OpenLog:
            if self.error is not None:
                self.tried.set()
                raise self.error
            return await open_log(store, key, create=create)

        monkeypatch.setattr(DataStore, "open", open_or_fail)
        monkeypatch.setattr(reopening, "RETRY", Backoff(0.0, 0.0))


@pytest.fixture
async def waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[OwnDataHarness, str, UnreadableStore]]:
    """Yield a gateway with a job whose files could not be opened at its start."""
    async with own_data(tmp_path) as harness:
        harness.add_worker()
        await harness.upload(2)
        status = await harness.jobs.submit(UNRESTRICTED, SPEC)
    disk = UnreadableStore(monkeypatch)
    disk.error = OSError(errno.EIO, "Input/output error")
    async with own_data(tmp_path) as harness:
        assert await harness.jobs.restore() == 1
        yield harness, status.id, disk


async def test_job_whose_files_cannot_be_opened_runs_once_they_can(
    waiting: tuple[OwnDataHarness, str, UnreadableStore],
) -> None:
    harness, job_id, disk = waiting
    worker = harness.add_worker()
    async with asyncio.timeout(30):
        await disk.tried.wait()
    job = harness.jobs.unfinished(job_id)
    assert job is not None
    job.pause()
    assert not (await harness.jobs.get(UNRESTRICTED, job_id)).state.ended
    with pytest.raises(Unavailable, match="cannot be read now"):
        await harness.read(job_id)
    disk.error = None
    [assignment], [inputs] = await harness.next_orders(worker)
    assert len(inputs.inputs) == 2
    harness.report(worker, assignment, 2, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    assert (await harness.jobs.get(UNRESTRICTED, job_id)).state is JobState.SUCCEEDED


async def test_unexpected_error_of_one_job_does_not_keep_others_from_reopening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = []
    async with own_data(tmp_path) as harness:
        harness.add_worker()
        for upload_id in ("first", "second"):
            await harness.upload(1, upload_id=upload_id)
            status = await harness.jobs.submit(UNRESTRICTED, replace(SPEC, upload_id=upload_id))
            ids.append(status.id)
    disk = UnreadableStore(monkeypatch)
    disk.error = OSError(errno.EIO, "Input/output error")
    async with own_data(tmp_path) as harness:
        assert await harness.jobs.restore() == 2
        worker = harness.add_worker()
        restore = OwnInputs.restore
        failed = asyncio.Event()

        async def fail_at_first(own: OwnInputs, record: JobRecord) -> JobData:
            if record.id == ids[0] and not failed.is_set():
                failed.set()
                raise RuntimeError("a bug")
            return await restore(own, record)

        monkeypatch.setattr(OwnInputs, "restore", fail_at_first)
        disk.error = None
        async with asyncio.timeout(30):
            await failed.wait()
        done = 0
        while done < 2:
            assignments, _ = await harness.next_orders(worker)
            for assignment in assignments:
                harness.report(worker, assignment, 1, outcome=hub_pb2.OUTCOME_COMPLETED)
                done += 1
        await harness.flush_journal()
        for job_id in ids:
            assert (await harness.jobs.get(UNRESTRICTED, job_id)).state is JobState.SUCCEEDED
    assert "a bug" in caplog.text


async def test_job_whose_files_cannot_be_opened_can_be_cancelled(
    waiting: tuple[OwnDataHarness, str, UnreadableStore],
) -> None:
    harness, job_id, disk = waiting
    assert (await harness.jobs.cancel(UNRESTRICTED, job_id)).state is JobState.CANCELLED
    disk.error = None
    await harness.flush_journal()
    assert await harness.jobs.list(UNRESTRICTED, [JobState.QUEUED, JobState.RUNNING], 9) == []
    assert await harness.jobs.restore() == 0


async def test_job_whose_files_turn_out_to_be_missing_fails(
    waiting: tuple[OwnDataHarness, str, UnreadableStore],
) -> None:
    harness, job_id, disk = waiting
    disk.error = FileNotFoundError()
    async with aclosing(harness.jobs.watch(UNRESTRICTED, job_id)) as statuses:
        states = [status.state async for status in statuses]
    assert states[-1] is JobState.FAILED


async def test_full_disk_pauses_the_job_until_its_results_fit(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.journal.journal._PROBE_S", 0.001)
    monkeypatch.setattr("gateway.jobs.pausing._RESUME_INTERVAL_S", 0.001)
    worker = harness.add_worker()
    pausing = asyncio.create_task(harness.jobs.pauses.follow_store())
    await harness.upload(2)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], _ = await harness.next_orders(worker)
    append = RecordLog.append

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    reserve = harness.journal._reserve
    with monkeypatch.context() as patch:
        patch.setattr(RecordLog, "append", full)
        patch.setattr(reserve, "take", lambda: False)
        harness.report(worker, assignment, 2, outcome=hub_pb2.OUTCOME_COMPLETED)
        await harness.flush_journal()
        assert status.id in harness.jobs.pauses
        assert (await harness.jobs.get(UNRESTRICTED, status.id)).queries_done == 0
        with pytest.raises(StoreFull):
            await harness.upload(1, upload_id="other")
    assert RecordLog.append is append
    [again], _ = await harness.next_orders(worker)
    harness.report(worker, again, 2, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    assert (await harness.jobs.get(UNRESTRICTED, status.id)).state is JobState.SUCCEEDED
    assert len(await harness.read(status.id)) == 2
    pausing.cancel()
    await asyncio.wait([pausing])


async def test_full_disk_refuses_uploads_before_it_is_full(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.jobs.uploads.FREE_BYTES", 1 << 60)
    with pytest.raises(Overloaded, match="uploads leave 1,152,921,504,606,846,976 of them"):
        await harness.upload(1)
    monkeypatch.undo()
    assert (await harness.upload(1))[-1] == 1


async def test_failed_disk_breaks_the_journal(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_args: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(record_log, "_write", failed)
    with pytest.raises(Exception, match="cannot be written"):
        await harness.upload(1)
    assert harness.journal.broken.done()


async def test_quota_of_stored_bytes_limits_uploads(harness: OwnDataHarness) -> None:
    harness.admission.use_table(AccessTable(tenants={"lab": Quota(stored_bytes=3000)}))
    assert (await harness.upload(2, size=1000, tenant="lab"))[-1] == 2
    with pytest.raises(QuotaExceeded, match="stored_bytes"):
        await harness.upload(2, first=2, size=1000, tenant="lab")
    assert (await harness.upload(2, size=2000))[-1] == 2


async def test_idle_uploads_do_not_keep_requests_out(harness: OwnDataHarness) -> None:
    uploads = InputUploads(
        harness.store, harness.journal, harness.admission, memory_bytes=2 * AHEAD_BYTES
    )
    end = asyncio.Event()

    async def idle(upload_id: str) -> AsyncIterator[bytes]:
        yield jobs_pb2.UploadRequest(upload_id=upload_id).SerializeToString()
        await end.wait()

    opened = [uploads.upload("", idle(f"u{number}"), lambda: None) for number in range(2)]
    assert [(await anext(each)).stored for each in opened] == [0, 0]
    harness.admission.acquire(1000)
    with pytest.raises(Overloaded, match="2 uploads are open"):
        await anext(uploads.upload("", idle("third"), lambda: None))
    end.set()
    for each in opened:
        assert [receipt async for receipt in each] == []
    assert await anext(uploads.upload("", idle("third"), lambda: None)) == Receipt(0, 0)


async def opened_uploads(
    uploads: InputUploads, tenants: Sequence[str], end: asyncio.Event
) -> list[AsyncGenerator[Receipt, None]]:
    """Open an upload of each tenant, which stays open until the end."""

    async def idle(upload_id: str) -> AsyncIterator[bytes]:
        yield jobs_pb2.UploadRequest(upload_id=upload_id).SerializeToString()
        await end.wait()

    opened = []
    for number, tenant in enumerate(tenants):
        receipts = uploads.upload(tenant, idle(f"u{number}"), lambda: None)
        assert (await anext(receipts)).stored == 0
        opened.append(receipts)
    return opened


async def test_tenant_holds_at_most_half_of_the_open_uploads(harness: OwnDataHarness) -> None:
    harness.admission.use_table(AccessTable())
    uploads = InputUploads(
        harness.store, harness.journal, harness.admission, memory_bytes=4 * AHEAD_BYTES
    )
    end = asyncio.Event()
    opened = await opened_uploads(uploads, ["lab", "lab"], end)
    with pytest.raises(Overloaded, match="2 uploads of the tenant are open, its share of 4"):
        await opened_uploads(uploads, ["lab"], end)
    opened += await opened_uploads(uploads, ["shop", ""], end)
    with pytest.raises(Overloaded, match="4 uploads are open"):
        await opened_uploads(uploads, ["shop"], end)
    end.set()
    for each in opened:
        assert [receipt async for receipt in each] == []
    await opened_uploads(uploads, ["lab", "lab"], end)


async def test_upload_without_a_first_message_is_ended(harness: OwnDataHarness) -> None:
    uploads = InputUploads(harness.store, harness.journal, harness.admission, first_s=0.0)

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    with pytest.raises(Unavailable, match="no message has arrived"):
        await anext(uploads.upload("", silent(), lambda: None))


async def test_idle_upload_is_ended_and_keeps_its_inputs(harness: OwnDataHarness) -> None:
    uploads = InputUploads(harness.store, harness.journal, harness.admission, idle_s=0.0)
    await harness.upload(3)
    opening = jobs_pb2.UploadRequest(upload_id="up").SerializeToString()

    async def idle() -> AsyncIterator[bytes]:
        yield opening
        await asyncio.Event().wait()

    receipts = uploads.upload("", idle(), lambda: None)
    assert (await anext(receipts)).stored == 3
    with pytest.raises(Unavailable, match="continue the upload"):
        await anext(receipts)
    assert await harness.upload(0) == [3]


async def test_empty_uploads_are_not_kept(harness: OwnDataHarness) -> None:
    for number in range(3):
        assert await harness.upload(0, upload_id=f"u{number}") == [0]
    assert not harness.store.stored()
    assert not list((harness.directory / "tenant-/uploads").iterdir())


async def test_number_of_uploads_of_a_tenant_is_limited(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_UPLOADS", 2)
    await harness.upload(1, upload_id="a")
    await harness.upload(1, upload_id="b")
    with pytest.raises(Overloaded, match="2 uploads of the tenant"):
        await harness.upload(1, upload_id="c")
    await harness.upload(1, first=1, upload_id="b")
    await harness.upload(1, upload_id="c", tenant="lab")


async def test_large_log_that_is_opened_does_not_delay_others(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    open_log = RecordLog._open

    def slow(log: RecordLog) -> None:
        if log.directory.name == "large":
            opening.set()
            assert go_on.wait(30)
        open_log(log)

    monkeypatch.setattr(RecordLog, "_open", slow)
    large = asyncio.create_task(harness.upload(1, upload_id="large"))
    assert await asyncio.to_thread(opening.wait, 30)
    assert (await harness.upload(1))[-1] == 1
    go_on.set()
    assert (await large)[-1] == 1


async def test_upload_is_not_moved_onto_another_one(harness: OwnDataHarness) -> None:
    await harness.upload(1)
    await harness.upload(2, tenant="lab")
    opened = await harness.store.open(DataKey("", "uploads", "up"))
    with pytest.raises(Conflict, match="another id"):
        await harness.store.move(opened, "lab")
    await harness.store.release(opened)
    assert (await harness.upload(0), await harness.upload(0, tenant="lab")) == ([1], [2])


async def test_lack_of_descriptors_does_not_break_the_journal(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, **_: object) -> RecordLog:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.records.store.RecordLog", refuse)
        with pytest.raises(Overloaded, match="too many open files"):
            await harness.upload(1)
    assert not harness.journal.broken.done()
    assert (await harness.upload(1))[-1] == 1


async def test_upload_moves_to_the_tenant_of_the_job(harness: OwnDataHarness) -> None:
    harness.add_worker()
    await harness.upload(2)
    spec = JobSpec(engine=SPEC.engine, queries=0, upload_id="up", tenant="lab")
    status = await harness.jobs.submit(UNRESTRICTED, spec)
    assert status.spec.queries == 2
    assert harness.store.bytes_of("") == 0
    assert DataKey("lab", "uploads", "up") in harness.store


async def test_data_is_deleted_when_it_is_no_longer_kept(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    now = harness.clock.to_unix(harness.clock.now())
    await harness.upload(1, upload_id="unused")
    await harness.upload(1)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)

    async def sweep(after_s: float, budget_bytes: int | None = None) -> set[str]:
        kept = Retention(
            harness.store,
            harness.journal,
            lambda: now + after_s,
            uploads_kept_s=100.0,
            results_kept_s=1000.0,
            budget_bytes=budget_bytes,
        )
        await kept.sweep()
        return {key.name for key in harness.store.stored()}

    assert await sweep(90.0) == {"unused", "up", status.id}
    assert await sweep(200.0, budget_bytes=1) == {"up", status.id}
    [assignment], _ = await harness.next_orders(worker)
    harness.report(worker, assignment, 1, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    await harness.jobs.close()
    assert await sweep(900.0) == {"up", status.id}
    assert await sweep(1100.0) == set()
    assert harness.store.bytes == 0
    with pytest.raises(NotFound, match="no longer kept"):
        await harness.read(status.id)


async def test_retention_goes_on_after_a_failure(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.upload(1)
    monkeypatch.setattr("gateway.jobs.retention._INTERVAL_S", 0.0)
    uses, failing = harness.journal.jobs_over_uploads, [StoreFull(), OSError(errno.EIO, "failed")]

    def jobs_over_uploads() -> Any:
        if failing:
            raise failing.pop()
        return uses()

    monkeypatch.setattr(harness.journal, "jobs_over_uploads", jobs_over_uploads)
    retention = Retention(
        harness.store, harness.journal, lambda: 1e12, uploads_kept_s=1.0, results_kept_s=1.0
    )
    running = asyncio.create_task(retention.run())
    deleted, delete = asyncio.Event(), harness.store.delete

    async def tell(key: DataKey) -> bool:
        deleted.set()
        return await delete(key)

    monkeypatch.setattr(harness.store, "delete", tell)
    async with asyncio.timeout(30):
        await deleted.wait()
    running.cancel()
    await asyncio.wait([running])


async def test_budget_deletes_the_data_of_ended_jobs_early(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    await harness.upload(1)
    await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], _ = await harness.next_orders(worker)
    harness.report(worker, assignment, 1, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    await harness.jobs.close()
    now = harness.clock.to_unix(harness.clock.now())
    retention = Retention(
        harness.store, harness.journal, lambda: now, uploads_kept_s=1e9, results_kept_s=1e9,
        budget_bytes=1,
    )  # fmt: skip
    await retention.sweep()
    assert not harness.store.stored()
