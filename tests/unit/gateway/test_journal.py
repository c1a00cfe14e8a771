"""The journal: confirmed operations survive a crash, and no query is recorded twice."""

import asyncio
import math
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import apsw
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.journal import operations, shared_state
from gateway.journal.job_record import RecordedExecution, RecordedJob
from gateway.journal.journal import Journal
from gateway.journal.shared_state import SharedState, StateDocuments
from gateway.journal.sqlite_store import SqliteStore, open_journal
from gateway.journal.store import JournalBroken
from synergai.domain import AssignmentId, Configuration, EngineName, JobId, WorkerId
from synergai.errors import InternalError, SynergaiError, Unavailable
from synergai.jobs import JobSpec, JobState
from synergai.runtime.clock import MAX_DOWNTIME_S, Clock, ClockReading
from synergai.runtime.database import connect

QUERIES = 20
FILES = ("journal.db", "journal.db-wal", "journal.marker")


def a_record(
    job_id: str = "a", queries: int = QUERIES, qos: float = math.inf, tenant: str = ""
) -> RecordedJob:
    return RecordedJob(
        id=JobId(job_id),
        spec=JobSpec(
            engine=EngineName("echo"), version="1", queries=queries, qos=qos, tenant=tenant
        ),
        state=JobState.QUEUED,
        submitted_at=100.0,
    )


def an_execution(first: int, count: int) -> RecordedExecution:
    return RecordedExecution(
        worker_id=WorkerId("w1"),
        configuration=Configuration(2, "MAXN"),
        first=first,
        count=count,
        seconds=1.5,
        labelled=count,
        correct=count // 2,
    )


def ended(record: RecordedJob, state: JobState = JobState.SUCCEEDED) -> RecordedJob:
    return RecordedJob(
        id=record.id,
        spec=record.spec,
        state=state,
        submitted_at=record.submitted_at,
        finished_at=200.0,
        reason="because",
        stages=(EngineName("echo.s0-1"), EngineName("echo.s1-2/3")),
    )


def database(journal: Journal) -> apsw.Connection:
    assert isinstance(journal._store, SqliteStore)
    return journal._store.connection


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = Journal(tmp_path, kept_jobs=3)
    yield journal
    await journal.close()


def test_memory_for_cached_pages_is_bounded(tmp_path: Path) -> None:
    with ExitStack() as stack:
        connection = open_journal(tmp_path, Clock(), stack).connection
        connection.execute("CREATE TABLE filler (content)")
        for _ in range(1_000):
            connection.execute("INSERT INTO filler VALUES (randomblob(3000))")
        assert connection.execute("SELECT sum(length(content)) FROM filler").get == 3_000_000
        used, _ = connection.status(apsw.SQLITE_DBSTATUS_CACHE_USED)
    assert 0 < used < 250_000


async def test_closed_journal_has_no_file_open(tmp_path: Path) -> None:
    await Journal(tmp_path).close()
    opened = [each.path for each in psutil.Process().open_files()]
    assert not [path for path in opened if path.startswith(str(tmp_path))]


async def test_ended_jobs_of_a_tenant_are_listed_however_many_others_have(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(100):
        record = a_record(f"j{number}", tenant="lab" if number < 5 else f"shop-{number % 7}")
        await journal.accept(record)
        await journal.record_end(ended(record))
    asked: list[tuple[str, str]] = []

    def wanted(engine: str, tenant: str) -> bool:
        asked.append((engine, tenant))
        return tenant == "lab"

    found = await journal.ended_jobs([JobState.SUCCEEDED], 3, wanted)
    assert [record.id for record in found] == ["j4", "j3", "j2"]
    assert len(asked) <= 3 + 8
    assert await journal.ended_jobs([JobState.FAILED], 3, wanted) == []
    plan = database(journal).execute(
        "EXPLAIN QUERY PLAN " + operations.ENDED_IN_SCOPE, (1 << 3, '[["echo","lab"]]', 3)
    )
    assert any("jobs_by_owner (engine=? AND tenant=?)" in row[3] for row in plan)
    await journal.close()


async def test_second_gateway_on_the_directory_is_refused(journal: Journal, tmp_path: Path) -> None:
    assert journal.epoch == 1
    with pytest.raises(Unavailable, match="another gateway uses"):
        Journal(tmp_path)


@pytest.mark.parametrize(
    ("pragma", "text"),
    [("user_version=1", "version 1"), ("application_id=7", "of another program")],
)
async def test_journal_of_another_version_is_refused(
    tmp_path: Path, pragma: str, text: str
) -> None:
    await Journal(tmp_path).close()
    connection = connect(tmp_path / "journal.db")
    connection.execute(f"PRAGMA {pragma}")
    connection.close()
    with pytest.raises(JournalBroken, match=text) as error:
        Journal(tmp_path)
    assert "another state directory (--state)" in str(error.value)
    for name in FILES:
        assert name in str(error.value)
        (tmp_path / name).unlink(missing_ok=True)
    await Journal(tmp_path).close()


async def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(JournalBroken, match="cannot be used"):
        Journal(tmp_path)


async def test_failed_start_releases_the_directory(tmp_path: Path) -> None:
    await Journal(tmp_path).close()
    connection = connect(tmp_path / "journal.db")
    connection.execute("DELETE FROM gateway")
    for _ in range(2):
        with pytest.raises(JournalBroken, match="no epoch"):
            Journal(tmp_path)
    connection.execute("INSERT INTO gateway (epoch, commits) VALUES (7, 1)")
    connection.close()
    journal = Journal(tmp_path)
    assert journal.epoch == 8
    await journal.close()


async def test_as_many_ended_jobs_are_kept_as_is_said_the_newest_ones(journal: Journal) -> None:
    for name in "abcd":
        await journal.accept(a_record(name))
    for name in "abc":
        await journal.record_end(ended(a_record(name)))
    await journal._purge(2)
    kept = await journal.ended_jobs([JobState.SUCCEEDED], 9)
    assert [each.id for each in kept] == ["c", "b"]
    assert await journal.find_job(JobId("d")) is not None


ranges = st.tuples(st.integers(0, QUERIES - 1), st.integers(1, QUERIES))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("record"), st.integers(0, 3), ranges),
        st.tuples(st.just("end"), st.integers(0, 3), st.sampled_from(["SUCCEEDED", "FAILED"])),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


class Model:
    """Reference model of the journal in plain Python."""

    def __init__(self) -> None:
        self.recorded: dict[str, list[tuple[int, int]]] = {}
        self.states: dict[str, JobState] = {}
        self.keys: dict[str, str] = {}

    def accept(self, job: str, key: str) -> str:
        found = self.keys.setdefault(key, job)
        if found == job:
            self.recorded[job] = []
            self.states[job] = JobState.QUEUED
        return found

    def record(self, job: str, first: int, count: int) -> bool:
        """Record a range; return whether it is valid."""
        if self.states.get(job) is not JobState.QUEUED or first + count > QUERIES:
            return False
        if any(first < f + c and f < first + count for f, c in self.recorded[job]):
            return False
        self.recorded[job].append((first, count))
        return True


@settings(max_examples=40)
@given(steps)
def test_journal_after_crashes_equals_the_model(
    steps: list[tuple[str, int, object]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(follow(Path(directory) / "state", steps))


def copied(directory: Path, copy: Path) -> Path:
    """Copy the files of an open journal, as a power cut or a crash leaves them."""
    copy.mkdir()
    for name in FILES:
        if (directory / name).exists():
            shutil.copy(directory / name, copy / name)
    return copy


async def jobs_in(state: Path) -> tuple[int, int]:
    """Return the epoch and the number of jobs."""
    journal = Journal(state)
    try:
        return journal.epoch, len(await journal.unfinished_jobs())
    finally:
        await journal.close()


async def follow(directory: Path, steps: list[tuple[str, int, object]]) -> None:
    model = Model()
    journal = Journal(directory)
    for number, (step, which, detail) in enumerate(steps):
        job = f"job-{which}"
        match step, detail:
            case "accept", int():
                fresh = f"job-{which}" if job not in model.states else f"other-{number}"
                expected = model.accept(fresh, f"key-{detail}")
                assert await journal.accept(a_record(fresh), f"key-{detail}") == expected
            case "record", (int(first), int(count)):
                recording = journal.record_execution(
                    JobId(job), AssignmentId(number), an_execution(first, count)
                )
                if job not in model.states or model.record(job, first, count):
                    await recording
                else:
                    with pytest.raises(InternalError):
                        await recording
            case "end", str():
                if model.states.get(job) is JobState.QUEUED:
                    model.states[job] = JobState[detail]
                await journal.record_end(ended(a_record(job), JobState[detail]))
            case _:
                directory = copied(directory, directory.with_name(f"{directory.name}-{number}"))
                await journal.close()
                journal = Journal(directory)
    directory = copied(directory, directory.with_name("last"))
    await journal.close()
    journal = Journal(directory)
    try:
        unfinished = [status.id for status in await journal.unfinished_jobs()]
        assert unfinished == [j for j, s in model.states.items() if s is JobState.QUEUED]
        for job, state in model.states.items():
            read = await journal.find_job(JobId(job))
            assert read is not None
            assert read.state is state
            assert [(e.first, e.count) for e in read.executions] == model.recorded[job]
    finally:
        await journal.close()


HOUR = 3600.0


class FrozenClock(Clock):
    """A clock that stands still at a reading."""

    def __init__(self, reading: ClockReading) -> None:
        super().__init__()
        self._reading = reading

    def read(self) -> ClockReading:
        return self._reading


BEFORE = ClockReading("boot 1", 5000.0, 160.0)
"""The jobs were submitted at 100.0, so they were a minute old."""


@pytest.mark.parametrize(
    ("after", "age_s"),
    [
        (ClockReading("boot 1", 5010.0, 170.0), 70),
        (ClockReading("boot 1", 5010.0, 170.0 + HOUR), 70),
        (ClockReading("boot 1", 5010.0, 170.0 - HOUR), 70),
        (ClockReading("boot 2", 8.0, 170.0), 70),
        (ClockReading("boot 2", 8.0, 160.0 + HOUR), 60 + HOUR),
        (ClockReading("boot 2", 8.0, 170.0 - HOUR), 60),
        (ClockReading("boot 2", 8.0, 160.0 + 9 * MAX_DOWNTIME_S), 60 + MAX_DOWNTIME_S),
        (ClockReading("", 5010.0, 170.0), 70),
    ],
)
async def test_age_of_a_job_follows_the_time_that_passed(
    tmp_path: Path, after: ClockReading, age_s: float
) -> None:
    journal = Journal(tmp_path, clock=FrozenClock(BEFORE))
    await journal.accept(a_record("waiting", qos=90.0))
    await journal.accept(a_record("ended"))
    await journal.record_end(ended(a_record("ended")))
    await journal.close()
    for _ in range(2):  # the second start finds an unchanged clock
        journal = Journal(tmp_path, clock=FrozenClock(after))
        [waiting] = await journal.unfinished_jobs()
        past = await journal.find_job(a_record("ended").id)
        await journal.close()
        assert after.unix - waiting.submitted_at == pytest.approx(age_s)
        assert waiting.deadline_at - after.unix == pytest.approx(90.0 - age_s)
        assert past is not None
        assert (past.submitted_at, past.finished_at) == (100.0, 200.0)


async def test_change_of_the_clock_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await Journal(tmp_path, clock=FrozenClock(BEFORE)).close()
    await Journal(tmp_path, clock=FrozenClock(BEFORE._replace(unix=160.0 + HOUR))).close()
    assert "changed by +3600 s" in caplog.text


class FakeJournal:
    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def change_documents(self, changed: dict[str, str], _removed: object) -> None:
        assert changed == {"policies": "new"}
        self.changed.set()


@pytest.mark.parametrize("error", [Unavailable("the dictionary is locked"), OSError("no file")])
async def test_changes_are_recorded_once_the_state_can_be_read_again(
    error: SynergaiError | OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = [error, {"policies": "new"}]

    def read(_documents: StateDocuments) -> object:
        outcome = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(shared_state, "_LOOK_S", 0.0)
    monkeypatch.setattr(StateDocuments, "read", read)
    journal = FakeJournal()
    shared = SharedState(cast("Journal", journal), tmp_path, tmp_path / "dictionary.db")
    following = asyncio.create_task(shared.follow())
    waiting = asyncio.create_task(journal.changed.wait())
    await asyncio.wait([following, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not following.done()
    following.cancel()
    await asyncio.wait([following])
    await shared.close()
