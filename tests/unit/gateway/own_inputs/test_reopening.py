"""Jobs whose files cannot be used for a while, or not at all."""

import asyncio
import errno
import threading
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from gateway.entry.access.caller import UNRESTRICTED
from gateway.jobs import own_inputs
from gateway.jobs.input_feed import JobData
from gateway.jobs.own_inputs import OwnInputs
from gateway.journal import record_log
from gateway.journal.data_store import DataKey
from gateway.journal.job_record import RecordedJob
from gateway.journal.record_log import DamagedLog, Record, RecordLog
from gateway.journal.store import StoreFull
from synergai.errors import Unavailable
from synergai.jobs import JobState
from synergai.v1 import hub_pb2
from tests.unit.gateway.own_inputs.conftest import SPEC, OwnDataHarness, UnreadableStore, own_data
from tests.waiting import turns


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
    monkeypatch.setattr(own_inputs, "ResultLog", Mock(side_effect=DamagedLog("damaged")))
    with pytest.raises(DamagedLog):
        await harness.jobs.submit(UNRESTRICTED, SPEC)
    for key in harness.store.stored():
        assert await harness.store.delete(key)


async def test_job_whose_counted_results_are_missing_fails(tmp_path: Path) -> None:
    async with own_data(tmp_path) as harness:
        worker, status, assignment, _ = await harness.run_job(4)
        harness.report(worker, assignment, 2)
        await harness.flush_journal()
    for path in (tmp_path / "data/tenant-/results" / status.id).glob("*.records"):
        path.unlink()
    async with own_data(tmp_path) as harness:
        assert await harness.jobs.restore() == 0
        ended = await harness.jobs.get(UNRESTRICTED, status.id)
        assert (ended.state, "missing" in ended.reason) == (JobState.FAILED, True)


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

        async def fail_at_first(own: OwnInputs, record: RecordedJob) -> JobData:
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
    monkeypatch.setattr("gateway.jobs.submitted._RESUME_INTERVAL_S", 0.001)
    worker = harness.add_worker()
    pausing = asyncio.create_task(harness.jobs.pauses.follow_store())
    await harness.upload(2)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)
    [assignment], _ = await harness.next_orders(worker)
    append = RecordLog.append
    reserve = harness.journal._reserve
    with monkeypatch.context() as patch:
        patch.setattr(RecordLog, "append", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
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


async def test_failed_disk_breaks_the_journal(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        record_log, "_write", Mock(side_effect=OSError(errno.EIO, "input/output error"))
    )
    with pytest.raises(Exception, match="cannot be written"):
        await harness.upload(1)
    assert harness.journal.broken.done()
