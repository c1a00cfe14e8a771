"""Documents of the leader's state directory, which the next leader continues with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.fleet.versions import PolicyFile, VersionPolicy
from gateway.journal.shared_state import SharedState
from synergai.domain import Configuration
from synergai.profiles.dictionary import PREDICTED, ProfileEntry
from synergai.profiles.store import DictionaryStore
from synergai.runtime.paths import dictionary_path
from tests.cores import new_entry
from tests.journals import Journals
from tests.postgresql import PostgresqlServer


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


async def test_next_leader_continues_with_policies_and_profiles(
    url: str, states: tuple[Path, Path]
) -> None:
    first, second = states
    async with leading(url, first) as shared:
        await PolicyFile(first).write({"echo": VersionPolicy(base="2")})
        with DictionaryStore(dictionary_path(first)) as store:
            store.put_all([entry(1), entry(2), entry(4)])
        await shared.save()
    async with leading(url, second):
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
        with DictionaryStore(dictionary_path(first)) as store:  # as a command does
            store.put_all([entry(1)])
        while not await shared._journal.documents():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
        following.cancel()
    async with leading(url, second):
        assert profiles(second) == [entry(1)]
