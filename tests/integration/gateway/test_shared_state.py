"""Documents of the leader's state directory, which the next leader continues with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from gateway.cli import app
from gateway.entry.access.workers import EnrolmentStore, sha256
from gateway.fleet.versions import PolicyFile, VersionPolicy
from gateway.journal.files import check_leads
from gateway.journal.shared_state import SharedState
from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import PREDICTED, ProfileEntry
from synergai.profiles.store import DictionaryStore
from synergai.runtime.paths import dictionary_path
from tests.cores import new_entry
from tests.journals import Journals
from tests.postgresql import PostgresqlServer

SECRET = sha256("secret")


def entry(threads: int, qps: float = 10.0) -> ProfileEntry:
    return new_entry("echo", "nx", qps, Configuration(threads))


def profiles(state: Path) -> list[ProfileEntry]:
    with DictionaryStore(dictionary_path(state)) as store:
        return sorted(store.load(), key=lambda each: each.configuration.threads)


@asynccontextmanager
async def leading(url: str, state: Path) -> AsyncIterator[SharedState]:
    """Lead with a state directory; yield its state as the gateway has it."""
    journal = await Journals(state, url).open()
    shared = SharedState(journal, state, dictionary_path(state))
    await shared.restore()
    yield shared
    await shared.close()
    await journal.close()


@pytest.fixture
def url(postgresql_server: PostgresqlServer) -> str:
    postgresql_server.clear()
    return postgresql_server.url


@pytest.fixture
def states(tmp_path: Path) -> tuple[Path, Path]:
    """State directories of two gateways."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return tmp_path / "a", tmp_path / "b"


async def test_next_leader_continues_with_policies_enrolments_and_profiles(
    url: str, states: tuple[Path, Path]
) -> None:
    first, second = states
    token = EnrolmentStore(first).issue("", "", 1e12, 0.0)  # before the first leader starts
    async with leading(url, first) as shared:
        EnrolmentStore(first).enrol(token, "edge-1", "nx", SECRET, 1.0)
        await PolicyFile(first).write({"echo": VersionPolicy(base="2")})
        with DictionaryStore(dictionary_path(first)) as store:
            store.put_all([entry(1), entry(2), entry(4)])
        await shared.save()
    async with leading(url, second):
        [worker] = EnrolmentStore(second).workers()
        assert worker.is_proved_by("nx", SECRET)
        assert PolicyFile(second).read() == {"echo": VersionPolicy(base="2")}
        assert profiles(second) == profiles(first) == [entry(1), entry(2), entry(4)]


async def test_changes_and_deletions_of_the_last_leader_replace_what_an_earlier_one_has(
    url: str, states: tuple[Path, Path]
) -> None:
    first, second = states
    predicted = replace(entry(2, qps=7.0), label=PREDICTED)
    for state in states:
        with DictionaryStore(dictionary_path(state)) as store:
            store.put_all([entry(1), entry(2)])
        await PolicyFile(state).write({"echo": VersionPolicy(base="2")})
    async with leading(url, first):
        pass
    async with leading(url, second) as shared:
        with DictionaryStore(dictionary_path(second)) as store:
            store.delete(lambda _: True)
            store.put_all([predicted])
        (second / "version-policies.json").unlink()
        await shared.save()
    async with leading(url, first):
        assert profiles(first) == [predicted]
        assert PolicyFile(first).read() == {}


async def test_change_by_a_command_is_recorded_while_the_gateway_runs(
    url: str, states: tuple[Path, Path]
) -> None:
    first, second = states
    async with leading(url, first) as shared:
        following = asyncio.create_task(shared.follow())
        command = ["enroll", "--state", str(first)]
        token = (await asyncio.to_thread(CliRunner().invoke, app, command)).stdout.strip()
        while not await shared._journal.documents():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        following.cancel()
    async with leading(url, second):
        EnrolmentStore(second).enrol(token, "edge-1", "nx", SECRET, 1.0)


async def test_next_leader_knows_a_revocation_by_a_command(
    url: str, states: tuple[Path, Path]
) -> None:
    first, second = states
    async with leading(url, first) as shared:
        store = EnrolmentStore(first)
        store.enrol(store.issue("", "", 1e12, 0.0), "edge-1", "nx", SECRET, 1.0)
        await shared.save()
        before = await shared._journal.documents()
        following = asyncio.create_task(shared.follow())
        command = ["workers", "revoke", "edge-1", "--state", str(first)]
        assert (await asyncio.to_thread(CliRunner().invoke, app, command)).exit_code == 0
        while await shared._journal.documents() == before:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        following.cancel()
    async with leading(url, second):
        [worker] = EnrolmentStore(second).workers()
        assert not worker.is_proved_by("nx", SECRET)


async def test_command_is_refused_where_the_gateway_does_not_lead(
    url: str, states: tuple[Path, Path]
) -> None:
    first, second = states
    check_leads(first)  # a gateway of its own, or one that has never led
    async with leading(url, first):
        check_leads(first)
    async with leading(url, second):
        check_leads(second)
        with pytest.raises(InvalidInput, match="does not lead: run the command on the leader's"):
            check_leads(first)
        done = CliRunner().invoke(app, ["workers", "revoke", "edge-1", "--state", str(first)])
        assert isinstance(done.exception, InvalidInput)
