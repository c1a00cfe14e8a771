"""Copies of a journal to PostgreSQL and back: complete, resumable, never half used."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.journal import copying
from gateway.journal.copying import copy_journal
from gateway.journal.job_record import RecordedJob
from gateway.journal.journal import Journal
from synergai.domain import AssignmentId, EngineName, JobId, JobState
from synergai.errors import InvalidInput, SynergaiError
from tests.journals import Journals
from tests.postgresql import PostgresqlServer
from tests.unit.gateway.test_journal import a_record, an_execution, ended

JOBS = 7


@pytest.fixture
def server(postgresql_server: PostgresqlServer) -> PostgresqlServer:
    postgresql_server.clear()
    return postgresql_server


@pytest.fixture
async def state(tmp_path: Path) -> Path:
    """A state directory whose gateway has stopped."""
    journal = Journal(tmp_path / "state")
    for number in range(JOBS):
        record = a_record(f"job-{number}")
        await journal.accept(record, f"key-{number}" if number % 3 else "")
        execution = an_execution(0, 5)
        await journal.record_execution(JobId(record.id), AssignmentId(number + 1), execution)
        if number % 2:
            await journal.record_end(ended(record))
    await journal.add_engines([EngineName("echo"), EngineName("other")])
    await journal.set_unloaded(EngineName("echo"), unloaded=True)
    await journal.forget_engines([EngineName("other")])
    await journal.close()
    return tmp_path / "state"


async def copy(url: str, state: Path, *, back: bool) -> int:
    return await asyncio.to_thread(partial(copy_journal, url, state, back=back))


async def content(journal: Journal) -> tuple[object, ...]:
    states = [state for state in JobState if state.ended]
    keys = [
        await journal.find_accepted(a_record(f"job-{number}").spec, f"key-{number}")
        for number in range(JOBS)
    ]
    jobs: list[RecordedJob] = [
        *await journal.unfinished_jobs(),
        *await journal.ended_jobs(states, 100),
    ]
    plain = [
        (each.id, each.spec, each.state, each.executions, each.reason, each.stages) for each in jobs
    ]
    return plain, keys, await journal.unloaded_engines(), await journal.forgotten_engines()


async def test_copy_has_everything_and_the_next_epoch_and_can_be_copied_back(
    server: PostgresqlServer, state: Path
) -> None:
    journal = Journal(state)
    expected, epoch = await content(journal), journal.epoch
    await journal.close()
    assert await copy(server.url, state, back=False) == JOBS
    journal = await Journals(state, server.url).open()
    assert (await content(journal), journal.epoch) == (expected, epoch + 1)
    await journal.accept(a_record("later"))
    with pytest.raises(SynergaiError):  # the rules of the schema are in force again
        await journal.record_execution(JobId("job-1"), AssignmentId(100), an_execution(5, 5))
    await journal.close()
    assert await copy(server.url, state, back=True) == JOBS + 1
    journal = Journal(state)
    assert journal.epoch == epoch + 2
    assert await journal.find_job(JobId("later"))
    with pytest.raises(SynergaiError):
        await journal.record_execution(JobId("job-1"), AssignmentId(100), an_execution(5, 5))
    await journal.close()


@pytest.mark.parametrize("back", [False, True])
async def test_interrupted_copy_is_continued_and_not_used_before(
    server: PostgresqlServer,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    back: bool,
) -> None:
    monkeypatch.setattr(copying, "_STEP", 2)
    if back:
        await copy(server.url, state, back=False)
    written: list[copying.Part] = []

    def fail(self: Any, part: copying.Part) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(part)
        write(self, part)

    kind = copying._NewFile if back else copying._Database
    write: Any = kind.write
    with monkeypatch.context() as patch:
        patch.setattr(kind, "write", fail)
        with pytest.raises(KeyboardInterrupt):
            await copy(server.url, state, back=back)
    if back:
        with pytest.raises(SynergaiError, match="is in PostgreSQL"):
            Journal(state)
    else:
        with pytest.raises(InvalidInput, match="has version 0"):
            await Journals(tmp_path / "other", server.url).open()
    assert await copy(server.url, state, back=back) == JOBS


async def test_journal_that_is_used_is_neither_source_nor_target(
    server: PostgresqlServer, state: Path, tmp_path: Path
) -> None:
    running = Journal(state)
    with pytest.raises(SynergaiError, match="another gateway uses the state directory"):
        await copy(server.url, state, back=False)
    await running.close()
    leader = await Journals(tmp_path / "other", server.url).open()
    with pytest.raises(InvalidInput, match=r"a gateway leads .*; stop all its gateways first"):
        await copy(server.url, state, back=False)
    await leader.close()
    with pytest.raises(InvalidInput, match="has a journal already: name another database"):
        await copy(server.url, state, back=False)
    with pytest.raises(InvalidInput, match="has a journal already: copy to another directory"):
        await copy(server.url, state, back=True)


async def test_copy_that_differs_is_not_used(
    server: PostgresqlServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = copying._Database._insert

    def lose(
        self: copying._Database, table: str, columns: str, rows: list[object], option: str = ""
    ) -> None:
        insert(self, table, columns, rows[1:] if table == "executions" else rows, option)  # type: ignore[arg-type]  # rows of any type

    monkeypatch.setattr(copying._Database, "_insert", lose)
    with pytest.raises(SynergaiError, match="the copy differs"):
        await copy(server.url, state, back=False)
    await Journal(state).close()
