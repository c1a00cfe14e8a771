"""A journal in PostgreSQL: what is refused, and how a gateway loses its leadership."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from msgspec.structs import replace

from demo.local_fleet import LocalFleet, reserved_port
from gateway.gateway_settings import GatewaySettings
from gateway.journal.files import Space
from gateway.journal.job_record import RecordedJob
from gateway.journal.journal import Journal
from gateway.journal.postgresql import leadership
from gateway.journal.postgresql import session as session_module
from gateway.journal.postgresql.leadership import LeaderCandidate, advertised
from gateway.journal.postgresql.session import DatabaseSession, check_encryption, check_server
from gateway.journal.store import Deposed, JournalBroken, StoreFull
from gateway.server import Gateway
from synergai.domain import AssignmentId, JobId
from synergai.errors import InvalidInput, InvalidSettings, SynergaiError
from synergai.runtime.clock import Clock, ClockReading
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.http1 import get
from tests.journals import LISTEN, Journals
from tests.postgresql import PostgresqlServer
from tests.unit.gateway.test_full_disk import until_space
from tests.unit.gateway.test_journal import FrozenClock, a_record, an_execution
from tests.wires import Wire


@pytest.fixture
def server(postgresql_server: PostgresqlServer) -> PostgresqlServer:
    postgresql_server.clear()
    return postgresql_server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
async def journal(server: PostgresqlServer, state: Path) -> AsyncIterator[Journal]:
    journal = await Journals(state, server.url).open()
    yield journal
    await journal.close()


async def refusal(url: str, state: Path) -> str:
    """Return why a gateway cannot lead the database."""
    with pytest.raises(SynergaiError) as error:
        await Journals(state, url).open()
    return str(error.value)


# --- what is refused at the start ---------------------------------------------------------------


async def test_server_that_is_absent_is_named(unreachable: str, state: Path) -> None:
    told = await refusal(f"postgresql://me@{unreachable}/jobs", state)
    assert told.startswith(f"PostgreSQL at {unreachable}/jobs cannot be used: ")
    assert "me@" not in told


async def test_missing_user_and_database_are_named(server: PostgresqlServer, state: Path) -> None:
    told = await refusal(f"postgresql://nobody@{server.address}/postgres", state)
    assert "refuses the user" in told
    assert "PGPASSFILE" in told
    told = await refusal(f"postgresql://postgres@{server.address}/missing", state)
    assert 'database "missing" does not exist; create the database first' in told


async def test_user_who_may_not_create_the_tables_is_told_the_remedy(
    server: PostgresqlServer, state: Path
) -> None:
    server.execute("DROP ROLE IF EXISTS guest")
    server.execute("CREATE ROLE guest LOGIN")
    url = f"postgresql://guest@{server.address}/postgres"
    assert "CREATE SCHEMA synergai AUTHORIZATION" in await refusal(url, state)
    server.execute("CREATE SCHEMA synergai AUTHORIZATION guest")
    await (await Journals(state, url).open()).close()
    server.clear()
    server.execute("DROP ROLE guest")


async def test_server_that_acknowledges_before_it_writes_is_refused(
    server: PostgresqlServer, state: Path
) -> None:
    url = f"{server.url}?options=-c%20synchronous_commit%3Doff"
    assert "synchronous_commit = off: it would lose accepted jobs" in await refusal(url, state)


@pytest.mark.parametrize(
    ("process_ids", "settings", "text"),
    [
        ((1, 1), (130_012, False, "on", "on"), "version 13; the journal needs 14 or later"),
        ((1, 1), (150_004, True, "on", "on"), "is a replica"),
        ((1, 1), (150_004, False, "on", "off"), "fsync = off"),
        ((1, 2), (150_004, False, "on", "on"), "a connection pooler answers"),
    ],
)
def test_unsuitable_server_is_refused(
    process_ids: tuple[int, int], settings: tuple[object, ...], text: str
) -> None:
    session = SimpleNamespace(
        url="postgresql://h/d", process_ids=process_ids, fetch=lambda _: [settings]
    )
    with pytest.raises(InvalidInput, match=text):
        check_server(cast("DatabaseSession", session))


async def test_connection_over_a_network_has_to_be_encrypted(server: PostgresqlServer) -> None:
    session = await asyncio.to_thread(DatabaseSession, server.url)
    await asyncio.to_thread(check_encryption, session)  # over loopback
    session.close()
    remote = SimpleNamespace(url="postgresql://h/d", value=lambda _: False)
    with pytest.raises(InvalidInput, match=r"is not encrypted: add \?sslmode=verify-full"):
        check_encryption(cast("DatabaseSession", remote))


async def test_missing_package_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    told = await refusal("postgresql://h/d", state)
    assert "needs asyncpg, which is not installed; pip install 'WHEEL[postgresql]'" in told


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("mysql://host/db", "write postgresql://USER@HOST/DATABASE"),
        ("postgresql://me:secret@host/db", "PGPASSFILE"),
        ("postgresql://me@host/db?password=secret", "PGPASSFILE"),
    ],
)
def test_url_of_another_database_or_with_a_password_is_refused(url: str, text: str) -> None:
    kept = "postgresql://me@host/db"
    assert GatewaySettings.load({"journal": kept}).journal == kept
    with pytest.raises(InvalidSettings, match=text) as error:
        GatewaySettings.load({"journal": url})
    assert "secret" not in str(error.value)


# --- which database belongs to which gateway ----------------------------------------------------


async def test_database_of_another_cluster_is_refused(
    journal: Journal, server: PostgresqlServer, state: Path
) -> None:
    await journal.close()
    server.clear()
    assert f"{server.address}/postgres has no journal, but {state}" in await refusal(
        server.url, state
    )
    await (await Journals(state.with_name("other"), server.url).open()).close()
    assert "the journal of another cluster" in await refusal(server.url, state)


async def test_state_directory_has_one_journal(server: PostgresqlServer, state: Path) -> None:
    await Journal(state).close()
    assert "has a journal of its own, journal.db" in await refusal(server.url, state)
    other = state.with_name("other")
    await (await Journals(other, server.url).open()).close()
    with pytest.raises(JournalBroken, match="is in PostgreSQL: name its database"):
        Journal(other)


async def test_journal_of_another_version_is_refused(
    journal: Journal, server: PostgresqlServer, state: Path
) -> None:
    await journal.close()
    server.execute("UPDATE synergai.gateway SET version = 1")
    assert "has version 1; this gateway needs version 2" in await refusal(server.url, state)


async def test_epoch_does_not_return_with_an_older_copy_of_the_database(
    journal: Journal, server: PostgresqlServer, state: Path
) -> None:
    await journal.close()
    again = await Journals(state, server.url).open()
    await again.close()
    server.execute("UPDATE synergai.gateway SET epoch = 1")
    again = await Journals(state, server.url).open()
    await again.close()
    assert again.epoch == 3


# --- leadership ---------------------------------------------------------------------------------


async def test_only_one_gateway_leads(
    journal: Journal, server: PostgresqlServer, state: Path
) -> None:
    await journal.engines()
    other = await asyncio.to_thread(
        LeaderCandidate, server.url, state.with_name("other"), Clock(), "here:8001"
    )
    assert await asyncio.to_thread(other.lead) is None
    assert await asyncio.to_thread(other.leader) == LISTEN
    await asyncio.to_thread(other.close)


async def test_write_of_an_earlier_epoch_fails_and_leaves_nothing(
    journal: Journal, server: PostgresqlServer
) -> None:
    await journal.accept(a_record("a"))
    server.execute("UPDATE synergai.gateway SET epoch = 2, leader = 'there:8001'")
    with pytest.raises(Deposed, match="another gateway, there:8001, has taken over the journal"):
        await journal.accept(a_record("b"), "key")
    assert isinstance(await journal.broken, Deposed)
    server.execute("UPDATE synergai.gateway SET epoch = 1")


async def test_ended_session_breaks_the_journal_with_its_cause(
    journal: Journal, server: PostgresqlServer
) -> None:
    await journal.accept(a_record("a"))
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'synergai gateway'"
    )
    with pytest.raises(JournalBroken, match=r"the session with PostgreSQL at .* has ended"):
        await journal.accept(a_record("b"))


async def test_leader_that_is_cut_off_gives_up_its_session(
    server: PostgresqlServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_STATEMENT_S", 2.0)
    with Wire(server.address) as wire:
        journal = await Journals(state, server.url.replace(server.address, wire.address)).open()
        await journal.accept(a_record("a"))
        wire.cut()
        with pytest.raises(JournalBroken, match="has ended: no answer in time"):
            await journal.accept(a_record("b"))
        with pytest.raises(JournalBroken):
            await journal.confirm()
        await journal.close()


async def test_client_that_repeats_a_submission_whose_commit_was_not_answered_gets_the_same_job(
    server: PostgresqlServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_STATEMENT_S", 2.0)
    with Wire(server.address) as wire:
        journal = await Journals(state, server.url.replace(server.address, wire.address)).open()
        await journal.accept(a_record("a"))
        wire.cut_answers_to(b"COMMIT")
        outcomes = await asyncio.gather(
            journal.record_execution(JobId("a"), AssignmentId(1), an_execution(0, 2)),
            journal.accept(a_record("b"), "key"),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes] == [JournalBroken, JournalBroken]
        await journal.close()
    journal = await Journals(state, server.url).open()
    assert await journal.accept(a_record("c"), "key") == "b"
    found = await journal.find_job(JobId("a"))
    assert found is not None
    assert found.executions == (an_execution(0, 2),)
    await journal.close()


async def test_silent_leader_is_replaced_by_another_gateway(
    server: PostgresqlServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LEASE_S", 1.0)
    silent = await Journals(state, server.url).open()
    await silent.accept(a_record("a"))
    follower = await Journals(state.with_name("other"), server.url).open()
    assert follower.epoch == 2
    assert [job.id for job in await follower.unfinished_jobs()] == ["a"]
    with pytest.raises(JournalBroken):
        await silent.accept(a_record("b"))
    await silent.close()
    await follower.close()


def hang_within_a_command(server: PostgresqlServer) -> socket.socket:
    """Return a connection of a leader that has stopped before the end of a command (no Sync).

    To the server it is neither idle nor idle in a transaction.
    """

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + (len(body) + 4).to_bytes(4, "big") + body

    line = socket.create_connection(("127.0.0.1", server.port))
    line.sendall(message(b"", b"\0\3\0\0user\0postgres\0database\0postgres\0\0"))
    timeout = "SET idle_session_timeout = 200; SET idle_in_transaction_session_timeout = 200"
    lock = f"SELECT pg_advisory_lock({leadership.LOCK}); {timeout}; SELECT 'locked'"
    line.sendall(message(b"Q", f"{lock}\0".encode()))
    received = b""
    while b"\6locked" not in received:
        received += line.recv(4096)
    line.sendall(message(b"P", b"\0SELECT 1\0\0\0"))
    return line


async def test_leader_that_hangs_within_a_command_is_replaced(
    server: PostgresqlServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "LEASE_S", 0.2)
    with hang_within_a_command(server):
        async with asyncio.timeout(60):
            follower = await Journals(state, server.url).open()
        await follower.close()


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
async def test_deadlines_follow_the_clock_of_the_next_leader(
    server: PostgresqlServer, state: Path, ahead_s: float
) -> None:
    async def job_for(unix: float, record: RecordedJob | None = None) -> RecordedJob:
        clock = FrozenClock(ClockReading("", 0.0, unix))
        clock.unix_now = lambda: unix  # type: ignore[method-assign]  # stands still
        journal = await Journals(state, server.url).open(clock=clock)
        if record is not None:
            await journal.accept(record)
        found = await journal.find_job(JobId("a"))
        await journal.close()
        assert found is not None
        return found

    before = await job_for(160.0, a_record("a", qos=90.0))
    after = await job_for(160.0 + ahead_s)
    assert after.submitted_at - before.submitted_at == pytest.approx(ahead_s, abs=5.0)


def test_standby_tells_an_address_that_other_machines_can_reach() -> None:
    assert advertised("10.1.1.1:8001") == "10.1.1.1:8001"
    assert not advertised("0.0.0.0:8001").startswith("0.0.0.0")
    assert advertised("[::]:8001").endswith(":8001")


@pytest.fixture
def disk() -> Iterator[Path]:
    """Mount point of a small disk for a database."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # the server is another user
        disk = Path(directory, "disk")
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(disk)]
        if os.geteuid() or subprocess.run(mount, check=False).returncode:
            pytest.skip("mounting is not permitted")
        yield disk
        subprocess.run(["umount", str(disk)], check=True)


async def test_full_disk_of_the_server_refuses_jobs_until_there_is_space(
    server: PostgresqlServer, disk: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.journal.journal._PROBE_S", 0.01)
    (disk / "tables").mkdir(mode=0o777)
    shutil.chown(disk / "tables", "postgres")
    server.execute(f"CREATE TABLESPACE small LOCATION '{disk}/tables'")
    server.execute("CREATE DATABASE small TABLESPACE small")
    journal = await Journals(state, server.url_of("small")).open()
    accepted = [await journal.accept(a_record("first"))]
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    with contextlib.suppress(StoreFull):
        for number in range(100_000):
            accepted += [await journal.accept(a_record(f"job-{number}"), f"key-{number}")]
    await until_space(journal, Space.FULL)
    assert [job.id for job in await journal.unfinished_jobs()] == accepted
    with pytest.raises(StoreFull, match="the disk of the gateway's journal is full"):
        await journal.accept(a_record("refused"))
    (disk / "filler").unlink()
    await until_space(journal, Space.AMPLE)
    await journal.accept(a_record("last"))
    await journal.close()
    server.execute("DROP DATABASE small")
    server.execute("DROP TABLESPACE small")


# --- standby ------------------------------------------------------------------------------------


async def fetch(address: str, path: str) -> tuple[int, str]:
    """Return the status and the body of a page; 0 if nothing listens."""
    try:
        answer = await get(address, path)
    except ConnectionError:
        return 0, ""
    return answer.status, answer.body.decode()


async def answered(config: GatewaySettings) -> tuple[int, str]:
    """Return the health of a gateway, once it answers."""
    async with asyncio.timeout(30):
        while not (health := await fetch(config.http, "/healthz"))[0]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return health


@pytest.fixture
def fixed(config: GatewaySettings) -> Iterator[GatewaySettings]:
    """Settings of a standby, whose ports are known before it leads."""
    with reserved_port() as listen, reserved_port() as http:
        yield replace(
            config,
            listen=f"127.0.0.1:{listen}",
            http=f"127.0.0.1:{http}",
            state=config.state.with_name("standby"),
        )


async def test_standby_refers_clients_to_the_leader_and_takes_over(
    server: PostgresqlServer, config: GatewaySettings, fixed: GatewaySettings, unreachable: str
) -> None:
    leader = Gateway(replace(config, journal=server.url, listen=unreachable))
    standby = Gateway(replace(fixed, journal=server.url))
    async with leader:
        entering = asyncio.create_task(standby.__aenter__())
        assert await answered(fixed) == (503, "standby\n")
        assert (await fetch(fixed.http, "/v2/health/live"))[0] == 200
        assert unreachable in (await fetch(fixed.http, "/v2/models/echo"))[1]
        async with grpc.aio.insecure_channel(fixed.listen) as channel:
            checked = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest()
            )
            assert checked.status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(
                grpc.aio.AioRpcError, match=f"the leader is {unreachable}"
            ) as refused:
                await jobs_pb2_grpc.JobsStub(channel).Get(jobs_pb2.GetRequest(job_id="a"))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await leader.app.storage.journal.accept(a_record("a"))
        assert not entering.done()
    async with asyncio.timeout(30):
        await entering
    assert (standby.app.jobs.restored, standby.app.storage.journal.epoch) == (1, 2)
    assert (await fetch(fixed.http, "/healthz"))[0] == 200
    await standby.__aexit__(None, None, None)


async def test_standby_can_be_stopped(
    journal: Journal, server: PostgresqlServer, fixed: GatewaySettings
) -> None:
    entering = asyncio.create_task(Gateway(replace(fixed, journal=server.url)).__aenter__())
    assert await answered(fixed)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert await fetch(fixed.http, "/healthz") == (0, "")
    await journal.accept(a_record("a"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_standby_takes_over_from_a_killed_or_hung_leader_with_every_acknowledged_job(
    server: PostgresqlServer, fixed: GatewaySettings, tmp_path: Path, number: signal.Signals
) -> None:
    with LocalFleet(tmp_path / "fleet") as fleet:
        await asyncio.to_thread(fleet.start_gateway, ["--journal", server.url])
        assert fleet.gateway is not None
        standby = Gateway(replace(fixed, journal=server.url))
        entering = asyncio.create_task(standby.__aenter__())
        assert await answered(fixed)
        assert fleet.address in (await fetch(fixed.http, "/v2/models/echo"))[1]
        fleet.gateway.send_signal(number)
        async with asyncio.timeout(60):
            await entering
        assert standby.app.storage.journal.epoch == 2
        fleet.gateway.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(fleet.gateway.wait, 60) != 0
        await standby.__aexit__(None, None, None)
        if number == signal.SIGSTOP:
            assert "Another gateway may lead now" in fleet.log("gateway").read_text()
