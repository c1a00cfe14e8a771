"""What every store of the journal has to do, and what survives when its process is killed."""

import asyncio
import dataclasses
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.fleet.descriptions import CommittedDescription, Description
from gateway.journal.journal import Journal
from gateway.journal.store import JournalBroken
from synergai.domain import AssignmentId, Configuration, EngineName, JobId, WorkerId
from synergai.errors import IdempotencyConflict, InternalError, UploadUsed
from synergai.jobs import JobState
from tests.journals import Journals
from tests.postgresql import PostgresqlServer
from tests.unit.gateway.conftest import ENGINE
from tests.unit.gateway.test_journal import a_record, an_execution, ended

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["sqlite", "postgresql"])
def journals(request: pytest.FixtureRequest, tmp_path: Path) -> Journals:
    if request.param == "sqlite":
        return Journals(tmp_path / "state")
    server: PostgresqlServer = request.getfixturevalue("postgresql_server")
    server.clear()
    return Journals(tmp_path / "state", server.url)


@pytest.fixture
async def journal(journals: Journals) -> AsyncIterator[Journal]:
    journal = await journals.open(kept_jobs=3)
    yield journal
    await journal.close()


async def test_job_is_read_back_as_it_was_written(journal: Journal) -> None:
    status = a_record(qos=7.5)
    await journal.accept(status)
    await journal.record_execution(status.id, AssignmentId(1), an_execution(0, 5))
    await journal.record_end(ended(status, JobState.FAILED))
    read = await journal.find_job(status.id)
    expected = ended(status, JobState.FAILED)
    assert read == dataclasses.replace(expected, executions=(an_execution(0, 5),))


async def test_same_key_gives_the_first_job(journal: Journal) -> None:
    assert await journal.accept(a_record("a"), "key") == "a"
    assert await journal.accept(a_record("b"), "key") == "a"
    assert await journal.find_job(JobId("b")) is None


async def test_same_key_for_another_specification_is_a_conflict(journal: Journal) -> None:
    await journal.accept(a_record("a"), "key")
    with pytest.raises(IdempotencyConflict):
        await journal.accept(a_record("b", queries=1), "key")


async def test_tenants_do_not_share_keys(journal: Journal) -> None:
    for tenant in ("lab", "shop", ""):
        assert (
            await journal.accept(a_record(f"of-{tenant}", tenant=tenant), "key") == f"of-{tenant}"
        )
    for tenant in ("lab", "shop", ""):
        again = a_record("again", tenant=tenant)
        assert await journal.accept(again, "key") == f"of-{tenant}"
        with pytest.raises(IdempotencyConflict):
            await journal.accept(a_record("again", queries=1, tenant=tenant), "key")


@pytest.mark.parametrize(("first", "count"), [(4, 1), (0, 5), (3, 4), (5, 16), (0, 20)])
async def test_range_that_overlaps_or_leaves_the_job_is_refused(
    journal: Journal, first: int, count: int
) -> None:
    await journal.accept(a_record())
    await journal.record_execution(JobId("a"), AssignmentId(1), an_execution(2, 3))
    with pytest.raises(InternalError):
        await journal.record_execution(JobId("a"), AssignmentId(2), an_execution(first, count))
    read = await journal.find_job(JobId("a"))
    assert read is not None
    assert read.executions == (an_execution(2, 3),)


async def test_nothing_is_recorded_of_a_job_that_has_ended(journal: Journal) -> None:
    await journal.accept(a_record())
    await journal.record_end(ended(a_record()))
    with pytest.raises(InternalError):
        await journal.record_execution(JobId("a"), AssignmentId(1), an_execution(0, 1))


async def test_first_end_is_kept(journal: Journal) -> None:
    await journal.accept(a_record())
    await journal.record_end(ended(a_record(), JobState.CANCELLED))
    await journal.record_end(ended(a_record(), JobState.SUCCEEDED))
    read = await journal.find_job(JobId("a"))
    assert read is not None
    assert read.state is JobState.CANCELLED


async def test_oldest_ended_jobs_are_purged_and_unfinished_ones_never(
    journal: Journal,
) -> None:
    await journal.accept(a_record("unfinished"), "kept")
    writes: list[Awaitable[object]] = []
    for number in range(256):
        writes.append(journal.accept(a_record(f"j{number}"), f"k{number}"))
        writes.append(journal.record_end(ended(a_record(f"j{number}"))))
    await asyncio.gather(*writes)
    kept = await journal.ended_jobs([JobState.SUCCEEDED], 1000)
    # The oldest leave just before the 256th end is written.
    assert [status.id for status in kept] == ["j255", "j254", "j253", "j252"]
    assert [s.id for s in await journal.unfinished_jobs()] == ["unfinished"]
    assert await journal.accept(a_record("again"), "k0") == "again"


async def test_listing_skips_jobs_that_are_not_wanted_however_many_there_are(
    journal: Journal,
) -> None:
    for number in range(6):
        record = a_record(f"j{number}")
        tenant = "own" if number in (0, 2) else "other"
        record = dataclasses.replace(record, spec=replace(record.spec, tenant=tenant))
        await journal.accept(record)
        await journal.record_end(ended(record))
    found = await journal.ended_jobs([JobState.SUCCEEDED], 2, lambda _, tenant: tenant == "own")
    assert [record.id for record in found] == ["j2", "j0"]
    assert await journal.ended_jobs([JobState.SUCCEEDED], 2, lambda _engine, _tenant: False) == []


async def test_epoch_increments_with_every_start(journals: Journals) -> None:
    epochs = []
    for _ in range(3):
        journal = await journals.open()
        epochs.append(journal.epoch)
        await journal.close()
    assert epochs == [1, 2, 3]


async def test_job_keeps_its_variant_and_floor_and_the_variants_that_ran_it(
    journals: Journals,
) -> None:
    journal = await journals.open()
    record = a_record()
    spec = replace(record.spec, variant="int8", min_accuracy=0.875)
    record = dataclasses.replace(record, spec=spec)
    await journal.accept(record, "key")
    execution = an_execution(0, 5)
    configuration = Configuration(2, "MAXN", "", "int8")
    execution = dataclasses.replace(execution, configuration=configuration)
    await journal.record_execution(record.id, AssignmentId(1), execution)
    await journal.close()
    journal = await journals.open()
    [kept] = await journal.unfinished_jobs()
    assert kept.spec == spec
    assert [each.configuration for each in kept.executions] == [configuration]
    for other in (replace(spec, variant=""), replace(spec, min_accuracy=0.9)):
        with pytest.raises(IdempotencyConflict):
            await journal.find_accepted(other, "key")
    await journal.close()


async def test_job_keeps_its_version_and_its_key_stands_for_what_was_asked(
    journals: Journals,
) -> None:
    journal = await journals.open()
    record = a_record()
    record = dataclasses.replace(record, spec=replace(record.spec, version="2"))
    asked = replace(record.spec, version="")
    await journal.accept(record, "key", asked)
    await journal.close()
    journal = await journals.open()
    assert [each.spec for each in await journal.unfinished_jobs()] == [record.spec]
    assert await journal.find_accepted(asked, "key") == record.id
    with pytest.raises(IdempotencyConflict):
        await journal.find_accepted(record.spec, "key")
    await journal.close()


async def test_removed_engines_are_unknown(journals: Journals) -> None:
    journal = await journals.open()
    await journal.add_engines([EngineName("echo"), EngineName("made-up")])
    await journal.remove_engines([EngineName("made-up"), EngineName("never known")])
    assert await journal.engines() == {"echo"}
    await journal.close()


async def test_engine_is_forgotten_until_it_is_added_or_recalled(journals: Journals) -> None:
    journal = await journals.open()
    echo, digits = EngineName("echo"), EngineName("digits")
    await journal.add_engines([echo, digits])
    await journal.set_unloaded(echo, unloaded=True)
    await journal.forget_engines([echo, digits])
    await journal.close()
    journal = await journals.open()
    assert await journal.forgotten_engines() == {echo, digits}
    assert await journal.engines() == set()
    await journal.add_engines([echo])
    assert await journal.forgotten_engines() == {digits}
    assert await journal.engines() == {echo}
    assert await journal.unloaded_engines() == set()
    await journal.close()


async def test_unloaded_engine_is_recorded_until_it_is_loaded(journals: Journals) -> None:
    journal = await journals.open()
    await journal.add_engines([EngineName("echo")])
    for engine in ("echo", "never remembered"):
        await journal.set_unloaded(EngineName(engine), unloaded=True)
    await journal.add_engines([EngineName("echo")])
    await journal.close()
    journal = await journals.open()
    assert (
        await journal.unloaded_engines() == {"echo", "never remembered"} == await journal.engines()
    )
    await journal.set_unloaded(EngineName("echo"), unloaded=False)
    assert await journal.unloaded_engines() == {"never remembered"}
    await journal.close()


async def test_committed_description_is_recorded_until_it_is_forgotten(
    journals: Journals,
) -> None:
    committed = CommittedDescription(description=Description.of(ENGINE), holders=(WorkerId("w1"),))
    journal = await journals.open()
    await journal.set_unloaded(ENGINE.name, unloaded=True)
    await journal.set_description(ENGINE.name, committed)
    await journal.close()
    journal = await journals.open()
    assert await journal.descriptions() == {ENGINE.name: committed}
    assert await journal.unloaded_engines() == {ENGINE.name}
    await journal.set_description(ENGINE.name, None)
    assert await journal.descriptions() == {}
    await journal.close()


async def test_internal_error_breaks_the_journal_for_good_instead_of_blocking_callers(
    journal: Journal,
) -> None:
    beyond_64_bits = AssignmentId(1 << 64)
    await journal.accept(a_record())
    with pytest.raises(JournalBroken):
        await journal.record_execution(JobId("a"), beyond_64_bits, an_execution(0, 1))
    assert journal.broken.done()
    with pytest.raises(JournalBroken):
        await journal.accept(a_record("b"))


async def test_callback_runs_after_all_earlier_operations(journal: Journal) -> None:
    seen: list[str] = []
    journal.after_pending(lambda: seen.append("nothing pending"))
    assert seen == ["nothing pending"]
    journal.accept(a_record()).add_done_callback(lambda _: seen.append("accepted"))
    recorded = journal.record_execution(JobId("a"), AssignmentId(1), an_execution(0, 1))
    recorded.add_done_callback(lambda _: seen.append("recorded"))
    journal.after_pending(lambda: seen.append("after"))
    await journal.engines()
    assert seen == ["nothing pending", "accepted", "recorded", "after"]


async def test_batch_of_submissions_gives_each_its_answer(journal: Journal) -> None:
    upload = dataclasses.replace(a_record("u1"), spec=replace(a_record().spec, upload_id="up"))
    again = dataclasses.replace(upload, id=JobId("u2"))
    answers = await asyncio.gather(
        journal.accept(a_record("a"), "key"),
        journal.accept(a_record("b"), "key"),
        journal.accept(a_record("c", queries=1), "key"),
        journal.accept(a_record("d")),
        journal.accept(a_record("e"), "other"),
        journal.accept(upload),
        journal.accept(again),
        return_exceptions=True,
    )
    assert answers[:2] == ["a", "a"]
    assert isinstance(answers[2], IdempotencyConflict)
    assert answers[3:6] == ["d", "e", "u1"]
    assert isinstance(answers[6], UploadUsed)
    assert [each.id for each in await journal.unfinished_jobs()] == ["a", "d", "e", "u1"]
    user = await journal.upload_user("", "up")
    assert user is not None
    assert user.id == "u1"


async def test_refused_record_leaves_the_rest_of_its_batch(journal: Journal) -> None:
    execution = an_execution(0, 3)
    outcomes = await asyncio.gather(
        journal.accept(a_record("a")),
        journal.record_execution(JobId("a"), AssignmentId(1), execution),
        journal.record_execution(JobId("a"), AssignmentId(2), an_execution(2, 2)),
        journal.accept(a_record("b"), "key"),
        journal.record_end(ended(a_record("b"))),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [str, type(None), InternalError, str, type(None)]
    assert "recorded already" in str(outcomes[2])
    found = await journal.find_job(JobId("a"))
    assert found is not None
    assert found.executions == (execution,)
    [ended_job] = await journal.ended_jobs([JobState.SUCCEEDED], 10)
    assert ended_job.id == "b"


async def test_record_of_an_assignment_is_extended_and_never_shortened(journal: Journal) -> None:
    await journal.accept(a_record())
    for count in (2, 5, 3):
        await journal.record_execution(JobId("a"), AssignmentId(7), an_execution(0, count))
    found = await journal.find_job(JobId("a"))
    assert found is not None
    assert found.executions == (an_execution(0, 5),)


async def test_text_of_any_kind_is_kept(journal: Journal) -> None:
    record = dataclasses.replace(ended(a_record()), reason='it\'s "50 %" \N{SNOWMAN} \\ $1 ?')
    await journal.accept(a_record(), "key ? $1 '")
    await journal.record_end(record)
    found = await journal.find_job(JobId("a"))
    assert found is not None
    assert found.reason == record.reason
    assert await journal.find_accepted(record.spec, "key ? $1 '") == "a"


@pytest.fixture
def writer(journals: Journals) -> Iterator["subprocess.Popen[str]"]:
    """A process that records jobs, and says what was acknowledged, until it is killed."""
    command = [sys.executable, "-m", "tests.journals", *journals.arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield process
        with suppress(ProcessLookupError):
            process.kill()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_killed_process_loses_nothing_that_was_acknowledged_and_keeps_nothing_twice(
    journals: Journals, writer: "subprocess.Popen[str]", seed: int
) -> None:
    assert writer.stdout is not None
    lines = 200 + random.Random(seed).randrange(300)
    said = [writer.stdout.readline() for _ in range(lines)]
    writer.kill()
    writer.wait()  # it locks the journal until it is gone
    said += writer.stdout.readlines()
    acknowledged = [line.split() for line in said if line.endswith("\n")]
    journal = await journals.open()
    jobs = {job.id: job for job in await journal.unfinished_jobs()}
    jobs |= {job.id: job for job in await journal.ended_jobs([JobState.SUCCEEDED], 10_000)}
    for what, job, *rest in acknowledged:
        record = jobs[JobId(job)]
        match what:
            case "accepted":
                assert await journal.accept(a_record("again"), f"key-{job}") == job
            case "recorded":
                assert int(rest[0]) in {execution.stop for execution in record.executions}
            case "ended":
                assert record.state is JobState.SUCCEEDED
    for record in jobs.values():
        stops = [0, *(execution.stop for execution in record.executions)]
        assert [execution.first for execution in record.executions] == stops[:-1]
    assert len({what for what, *_ in acknowledged}) == 3
    await journal.close()
