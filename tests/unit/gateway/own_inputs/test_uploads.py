"""Uploads: what is stored, what is refused, what is open at a time, and how long it is kept."""

import asyncio
import errno
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.entry.access.caller import UNRESTRICTED
from gateway.entry.access.table import AccessTable, Quota
from gateway.jobs import uploads
from gateway.jobs.own_inputs import Retention
from gateway.jobs.uploads import AHEAD_BYTES, InputUploads, Receipt
from gateway.journal.data_store import DataKey, DataStore
from gateway.journal.record_log import Record, RecordLog
from gateway.journal.store import StoreFull
from synergai.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    QuotaExceeded,
    SynergaiError,
    Unavailable,
    UploadNotFound,
    UploadUsed,
)
from synergai.jobs import JobSpec
from synergai.v1 import hub_pb2, jobs_pb2
from tests.clocks import FakeClock
from tests.unit.gateway.own_inputs.conftest import SPEC, OwnDataHarness


async def idle(upload_id: str, end: asyncio.Event) -> AsyncIterator[bytes]:
    """Begin an upload, and send nothing until the end."""
    yield jobs_pb2.UploadRequest(upload_id=upload_id).SerializeToString()
    await end.wait()


async def opened_uploads(
    uploads: InputUploads, tenants: Sequence[str], end: asyncio.Event
) -> list[AsyncGenerator[Receipt, None]]:
    """Open an upload of each tenant, which stays open until the end."""
    opened = []
    for number, tenant in enumerate(tenants):
        receipts = uploads.upload(tenant, idle(f"u{number}", end), lambda: None)
        assert (await anext(receipts)).stored == 0
        opened.append(receipts)
    return opened


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


async def test_full_disk_refuses_uploads_before_it_is_full(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.jobs.uploads.FREE_BYTES", 1 << 60)
    with pytest.raises(Overloaded, match="uploads leave 1,152,921,504,606,846,976 of them"):
        await harness.upload(1)
    monkeypatch.undo()
    assert (await harness.upload(1))[-1] == 1


async def test_quota_of_stored_bytes_limits_uploads(harness: OwnDataHarness) -> None:
    harness.admission.use_table(AccessTable(tenants={"lab": Quota(stored_bytes=3000)}))
    assert (await harness.upload(2, size=1000, tenant="lab"))[-1] == 2
    with pytest.raises(QuotaExceeded, match="stored_bytes"):
        await harness.upload(2, first=2, size=1000, tenant="lab")
    assert (await harness.upload(2, size=2000))[-1] == 2


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
    harness.admission.acquire(1000)  # they keep no requests out
    with pytest.raises(Overloaded, match="4 uploads are open"):
        await opened_uploads(uploads, ["shop"], end)
    end.set()
    for each in opened:
        assert [receipt async for receipt in each] == []
    await opened_uploads(uploads, ["lab", "lab"], end)


async def test_upload_without_a_first_message_is_ended(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "FIRST_S", 0.0)

    async def silent() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    with pytest.raises(Unavailable, match="no message has arrived"):
        await anext(harness.uploads.upload("", silent(), lambda: None))


async def test_idle_upload_is_ended_and_keeps_its_inputs(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.upload(3)
    monkeypatch.setattr(uploads, "IDLE_S", 0.0)
    receipts = harness.uploads.upload("", idle("up", asyncio.Event()), lambda: None)
    assert (await anext(receipts)).stored == 3
    with pytest.raises(Unavailable, match="continue the upload"):
        await anext(receipts)
    monkeypatch.undo()
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


@pytest.mark.parametrize(
    ("error", "refusal", "text"),
    [
        (OSError(errno.EMFILE, "Too many open files"), Overloaded, "too many open files"),
        (OSError(errno.EACCES, "Permission denied"), Unavailable, "may not write to its state"),
    ],
)
async def test_files_that_cannot_be_opened_on_an_intact_disk_do_not_break_the_journal(
    harness: OwnDataHarness,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    refusal: type[SynergaiError],
    text: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("gateway.journal.data_store.RecordLog", Mock(side_effect=error))
        with pytest.raises(refusal, match=text):
            await harness.upload(1)
    assert not harness.journal.broken.done()
    assert (await harness.upload(1))[-1] == 1


async def test_upload_moves_to_the_tenant_of_the_job_durably(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_worker()
    await harness.upload(2)
    synced: list[Path] = []
    monkeypatch.setattr("gateway.journal.data_store.sync_path", synced.append)
    spec = JobSpec(engine=SPEC.engine, queries=0, upload_id="up", tenant="lab")
    status = await harness.jobs.submit(UNRESTRICTED, spec)
    assert status.spec.queries == 2
    assert harness.store.bytes_of("") == 0
    assert DataKey("lab", "uploads", "up") in harness.store
    assert {"tenant-/uploads", "tenant-lab/uploads"} <= {"/".join(p.parts[-2:]) for p in synced}


DAY_S = 86_400.0


async def test_data_is_deleted_when_it_is_no_longer_kept(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    now = harness.clock.to_unix(harness.clock.now())
    await harness.upload(1, upload_id="unused")
    await harness.upload(1)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)

    async def sweep(after_s: float) -> set[str]:
        kept = Retention(
            harness.store,
            harness.journal,
            lambda: now + after_s,
            results_kept_s=1000.0,
        )
        await kept.sweep()
        return {key.name for key in harness.store.stored()}

    assert await sweep(0.9 * DAY_S) == {"unused", "up", status.id}
    assert await sweep(1.1 * DAY_S) == {"up", status.id}
    [assignment], _ = await harness.next_orders(worker)
    harness.report(worker, assignment, 1, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    await harness.jobs.close()
    assert await sweep(900.0) == {"up", status.id}
    assert await sweep(1100.0) == set()
    assert harness.store.bytes_of("") == 0
    with pytest.raises(NotFound, match="no longer kept"):
        await harness.read(status.id)


async def test_upload_to_which_nothing_is_added_is_not_kept_for_longer(tmp_path: Path) -> None:
    clock = FakeClock()
    store, key = DataStore(tmp_path, clock), DataKey("", "uploads", "up")
    opened = await store.open(key, create=True)
    opened.log.append([Record(0, (b"input",))])
    opened.log.sync()
    await store.release(opened)
    clock.now = DAY_S
    await store.release(await store.open(key))
    assert store.stored()[key].used_at == 0.0


async def test_retention_goes_on_after_a_failure(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.upload(1)
    monkeypatch.setattr("gateway.jobs.own_inputs._INTERVAL_S", 0.0)
    uses, failing = harness.journal.jobs_over_uploads, [StoreFull(), OSError(errno.EIO, "failed")]

    def jobs_over_uploads() -> Any:
        if failing:
            raise failing.pop()
        return uses()

    monkeypatch.setattr(harness.journal, "jobs_over_uploads", jobs_over_uploads)
    retention = Retention(harness.store, harness.journal, lambda: 1e12, results_kept_s=1.0)
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
