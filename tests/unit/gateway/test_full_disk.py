"""A full disk: jobs are refused and paused, reads work, and everything resumes with space."""

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import apsw
import pytest
from grpc_health.v1 import health_pb2

from gateway.calls.servicers.health import MAX_WATCHERS, HealthServicer
from gateway.entry.access.caller import UNRESTRICTED
from gateway.entry.admission import Admission
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import Versions
from gateway.fleet.worker import ConnectedWorker, StopAssignment
from gateway.journal.archive import check
from gateway.journal.files import Reserve, Space
from gateway.journal.journal import Journal
from gateway.journal.store import JournalBroken, StoreFull, is_disk_full
from synergai.core.scheduling.events import Assignment
from synergai.domain import EngineName, JobId
from synergai.errors import Overloaded, Unavailable
from synergai.jobs import JobSpec, JobState, JobStatus
from synergai.runtime.clock import Clock
from synergai.runtime.database import connect
from synergai.wire.server_call import ServerCall
from tests.unit.gateway.conftest import GatewayHarness
from tests.unit.gateway.test_journal import a_record, an_execution, database, ended

SPEC = JobSpec(engine=EngineName("echo"), queries=10)


class Disk:
    """The disk of a journal, which the test fills.

    The reserve that it stands for has room for `reserve` more writes.
    """

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.reserve = 0
        self._held = True
        execute = journal._execute
        monkeypatch.setattr(journal, "_reserve", self)
        monkeypatch.setattr("gateway.journal.journal._PROBE_S", 0.001)

        def executed(batch: list[object]) -> list[object]:
            if self.full and any(item.writes for item in batch):  # type: ignore[attr-defined]  # private to the journal
                if self._held or not self.reserve:
                    raise apsw.FullError("database or disk is full")
                self.reserve -= 1
            return execute(batch)  # type: ignore[arg-type]  # as above

        monkeypatch.setattr(journal, "_execute", executed)

    def take(self) -> bool:
        self._held = self._held or not self.full
        return self._held

    def release(self) -> bool:
        self._held, held = False, self._held
        return held


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    await journal.close()


@pytest.fixture
def disk(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(journal, monkeypatch)


async def until_space(journal: Journal, space: Space) -> None:
    async with asyncio.timeout(30):
        while journal.space is not space:
            await journal.wait_space_changed()


async def test_full_disk_fails_writes_and_answers_reads_until_there_is_space(
    journal: Journal, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await journal.accept(a_record("a"))
    disk.full = True
    with pytest.raises(StoreFull):
        await journal.accept(a_record("b"))
    assert journal.space is Space.FULL
    read, recorded = await asyncio.gather(
        journal.find_job(a_record("a").id), journal.record_end(ended(a_record("a"))),
        return_exceptions=True,
    )  # fmt: skip
    assert getattr(read, "state", None) is JobState.QUEUED
    assert isinstance(recorded, StoreFull)
    disk.full = False
    await until_space(journal, Space.AMPLE)
    await journal.accept(a_record("b"))
    assert not journal.broken.done()
    full, ample = (record.getMessage() for record in caplog.records if "disk" in record.msg)
    assert "is full: jobs are refused, accepted ones paused" in full
    assert "has room again: accepting jobs" in ample


async def test_reserve_records_the_progress_of_accepted_jobs(journal: Journal, disk: Disk) -> None:
    await journal.accept(a_record("a"))
    disk.full, disk.reserve = True, 2
    await journal.record_execution(a_record("a").id, 1, an_execution(0, 5))  # type: ignore[arg-type]  # any number
    assert (journal.space, journal.accepting, journal.writable) == (Space.RESERVE, False, True)
    await journal.record_end(ended(a_record("a")))
    with pytest.raises(StoreFull):
        await journal.accept(a_record("b"))
    assert journal.space is Space.FULL


async def test_real_shortage_of_pages_is_a_full_disk_and_loses_nothing(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal._reserve, "take", lambda: False)
    connection = database(journal)
    connection.pragma("max_page_count", connection.pragma("page_count") + 2)
    accepted = []
    with suppress(StoreFull):
        for number in itertools.count():
            accepted += [await journal.accept(a_record(f"job-{number}"))]
    assert journal.space is Space.FULL
    assert [job.id for job in await journal.unfinished_jobs()] == accepted


def test_only_a_lack_of_space_is_transient(tmp_path: Path) -> None:
    connection = connect(tmp_path / "d.db", create=True)
    assert is_disk_full(apsw.FullError("full"))
    assert is_disk_full(OSError(errno.ENOSPC, "no space"))
    assert not is_disk_full(OSError(errno.EIO, "broken"))
    assert not is_disk_full(apsw.IOError("disk I/O error"), connection)
    assert not is_disk_full(apsw.CorruptError("malformed"), connection)
    connection.close()


@pytest.mark.parametrize(
    ("step", "cause", "error"),
    [
        ("schema.create", apsw.FullError("full"), StoreFull),
        ("schema.create", apsw.CorruptError("malformed"), JournalBroken),
        ("check_files", OSError(errno.ENOSPC, "no space"), StoreFull),
        ("check_files", OSError(errno.EIO, "broken"), Unavailable),
    ],
)
async def test_full_disk_at_the_start_is_told_from_a_broken_journal(
    step: str,
    cause: Exception,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"gateway.journal.sqlite_store.{step}", Mock(side_effect=cause))
    with pytest.raises(error):
        Journal(tmp_path)


async def test_journal_that_cannot_be_read_for_lack_of_space_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Journal(tmp_path).close()
    monkeypatch.setattr(
        "gateway.journal.schema.read_version", Mock(side_effect=apsw.IOError("disk I/O error"))
    )
    for module in ("sqlite_store", "archive"):
        # SQLite's error says no more than "disk I/O error"; its connection has the cause.
        monkeypatch.setattr(
            f"gateway.journal.{module}.is_disk_full",
            lambda _error, connection: isinstance(connection, apsw.Connection),
        )
    for read in (Journal, check):
        with pytest.raises(StoreFull, match=f"{tmp_path} is full"):
            read(tmp_path)


async def test_broken_disk_breaks_the_journal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_execute", Mock(side_effect=apsw.IOError("disk I/O error")))
    with pytest.raises(JournalBroken):
        await journal.accept(a_record("a"))
    assert journal.broken.done()


def test_reserve_occupies_its_size_and_survives_restarts(tmp_path: Path) -> None:
    for _ in range(2):
        assert Reserve(tmp_path / "r", 1 << 20).take()
    assert (tmp_path / "r").stat().st_blocks * 512 >= 1 << 20
    assert Reserve(tmp_path / "r").release()
    assert not Reserve(tmp_path / "r").release()


def test_reserve_is_written_where_space_cannot_be_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "os.posix_fallocate", Mock(side_effect=OSError(errno.EOPNOTSUPP, "not supported"))
    )
    assert Reserve(tmp_path / "r", 1 << 20).take()
    assert (tmp_path / "r").stat().st_size == 1 << 20


def test_reserve_leaves_room_on_the_disk(tmp_path: Path) -> None:
    assert not Reserve(tmp_path / "r", 1 << 60).take()
    assert not (tmp_path / "r").exists()


@pytest.fixture
async def harness(journal: Journal) -> AsyncIterator[GatewayHarness]:
    harness = GatewayHarness(journal)
    following = asyncio.create_task(harness.jobs.pauses.follow_store())
    yield harness
    following.cancel()
    await asyncio.wait([following])
    harness.dispatcher.close()


async def start_job(harness: GatewayHarness) -> tuple[ConnectedWorker, JobStatus, Assignment]:
    """Let the only worker run a job."""
    worker = harness.add_worker()
    job, assignment = await harness.submitted(worker)
    await harness.flush_journal()
    return worker, job, assignment


async def resumed(harness: GatewayHarness, worker: ConnectedWorker, job_id: JobId) -> Assignment:
    """Wait until a paused job goes on; return what its worker gets."""
    async with asyncio.timeout(30):
        while job_id in harness.jobs.pauses:
            await harness.flush_journal()
    [assignment] = harness.assignments(worker)
    return assignment


async def test_job_pauses_on_a_full_disk_while_requests_are_served(
    harness: GatewayHarness, disk: Disk
) -> None:
    worker, job, assignment = await start_job(harness)
    harness.progress(worker, assignment, done=4)
    await harness.flush_journal()
    disk.full = True
    harness.progress(worker, assignment, done=7)
    await harness.flush_journal()
    assert job.id in harness.jobs.pauses
    with pytest.raises(Overloaded, match="journal is full"):
        await harness.jobs.submit(UNRESTRICTED, SPEC)
    harness.stop(worker, assignment, done=7)
    request, served = harness.started(worker)
    assert served.job_id != job.id
    harness.complete(worker, served, [b""], done=1)
    assert request.result.done()
    status = await harness.jobs.get(UNRESTRICTED, job.id)
    assert (status.state, status.queries_done) == (JobState.RUNNING, 4)

    disk.full = False
    again = await resumed(harness, worker, job.id)
    assert (again.job_id, again.first, again.count) == (job.id, 4, 6)
    harness.complete(worker, again, done=6)
    for _ in ("queries", "end"):
        await harness.flush_journal()
    status = await harness.jobs.get(UNRESTRICTED, job.id)
    assert (status.state, status.queries_done) == (JobState.SUCCEEDED, 10)


async def test_rest_of_a_stopped_assignment_is_taken_back_if_the_disk_is_full(
    harness: GatewayHarness, disk: Disk
) -> None:
    worker, job, assignment = await start_job(harness)
    _, served = harness.started(worker)
    disk.full = True
    harness.stop(worker, assignment, done=4)
    [rest] = harness.assignments(worker)
    assert (rest.job_id, rest.first, rest.count) == (job.id, 4, 6)
    await harness.flush_journal()
    assert job.id in harness.jobs.pauses
    assert StopAssignment(rest.id, abort=True) in harness.orders(worker)
    harness.complete(worker, served, [b""], done=1)
    harness.stop(worker, rest, done=2)

    disk.full = False
    again = await resumed(harness, worker, job.id)
    assert (again.job_id, again.first, again.count) == (job.id, 0, 10)


async def test_end_that_could_not_be_recorded_is_recorded_later(
    harness: GatewayHarness, disk: Disk
) -> None:
    worker, job, assignment = await start_job(harness)
    disk.full = True
    with pytest.raises(StoreFull):
        await harness.jobs.cancel(UNRESTRICTED, job.id)
    assert (await harness.jobs.get(UNRESTRICTED, job.id)).state is JobState.RUNNING
    with pytest.raises(StoreFull):
        await harness.jobs.cancel(UNRESTRICTED, job.id)
    harness.stop(worker, assignment)
    disk.full = False
    async with asyncio.timeout(30), aclosing(harness.jobs.watch(UNRESTRICTED, job.id)) as statuses:
        states = [status.state async for status in statuses]
    assert states[-1] is JobState.CANCELLED


async def test_paused_job_that_is_cancelled_before_it_resumes_ends_once(
    harness: GatewayHarness, caplog: pytest.LogCaptureFixture
) -> None:
    worker, job, assignment = await start_job(harness)
    unfinished = harness.jobs.unfinished(job.id)
    assert unfinished is not None
    unfinished.pause()  # and its worker still reports on it
    status = await harness.jobs.cancel(UNRESTRICTED, job.id)
    assert status.state is JobState.CANCELLED
    assert not len(harness.jobs.pauses)
    harness.stop(worker, assignment)
    harness.jobs.pauses._resume_some()
    await harness.flush_journal()
    assert not caplog.records


def test_health_of_the_job_service_follows_the_room_for_jobs() -> None:
    room = True
    health = HealthServicer(Versions(Catalogue()), Admission(1, 1, Clock()), lambda: room)
    assert health.status("synergai.v1.Jobs") == health_pb2.HealthCheckResponse.SERVING
    room = False
    assert health.status("synergai.v1.Jobs") == health_pb2.HealthCheckResponse.NOT_SERVING
    assert health.status("") == health_pb2.HealthCheckResponse.SERVING


async def test_watchers_are_limited_and_leave_their_room() -> None:
    health = HealthServicer(Versions(Catalogue()), Admission(1, 1, Clock()), lambda: True)
    request, context = health_pb2.HealthCheckRequest(), cast("ServerCall", None)
    async with AsyncExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            watcher = await stack.enter_async_context(aclosing(health.watch(request, context)))
            assert (await anext(watcher)).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(Overloaded, match="1,024 streams"):
            await anext(health.watch(request, context))
    async with aclosing(health.watch(request, context)) as watcher:
        assert (await anext(watcher)).status == health_pb2.HealthCheckResponse.SERVING
