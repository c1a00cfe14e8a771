"""Observed profiles are written to the dictionary file."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from profiler.dictionary.files import add_to_dictionary, delete_from_dictionary, load_dictionary
from synergai.domain import Configuration
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.profiles.service import DictionaryChanges, ProfileService
from tests.cores import new_entry


@asynccontextmanager
async def watching(
    profiles: ProfileService, use: Callable[[DictionaryChanges], object] | None = None
) -> AsyncIterator[asyncio.Queue[DictionaryChanges]]:
    """Watch the file of a dictionary; yield the reported changes, and close it."""
    reported: asyncio.Queue[DictionaryChanges] = asyncio.Queue()

    def report(changes: DictionaryChanges) -> None:
        if use is not None:
            use(changes)
        reported.put_nowait(changes)

    task = asyncio.create_task(profiles.watch(report, interval_s=0.01))
    yield reported
    task.cancel()
    await asyncio.wait([task])
    await profiles.close()


def fail_once_or_twice(failures: int) -> Callable[[], None]:
    """Return a function that raises an error the first times."""
    errors = iter([RuntimeError("a bug")] * failures)

    def fail() -> None:
        if (error := next(errors, None)) is not None:
            raise error

    return fail


def make_entry(qps: float, label: str = "measured", threads: int = 2) -> ProfileEntry:
    return new_entry("digits", "cloud", qps, Configuration(threads), label=label)


async def test_observed_entry_is_stored_with_its_date(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    profiles = ProfileService(tmp_path / "dictionary.db")
    profiles.record(new_entry("digits", "cloud", 100.0, Configuration(2), label="observed"))
    await profiles.close()

    [entry] = load_dictionary(tmp_path / "dictionary.db")
    assert entry.label == "observed"
    assert before <= datetime.fromisoformat(entry.measured_at) <= datetime.now(UTC)


async def test_observed_entry_of_the_core_is_shown_with_its_date(tmp_path: Path) -> None:
    profiles = ProfileService(tmp_path / "dictionary.db")
    observed = make_entry(29.0, "observed")
    profiles.record(observed)
    assert datetime.fromisoformat(profiles.completed(observed).measured_at).tzinfo is not None
    measured = make_entry(29.0)
    assert profiles.completed(measured) == measured
    await profiles.close()


async def test_observed_entry_replaces_an_observed_and_no_measured_one(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    add_to_dictionary(path, [make_entry(1119.0, threads=4)])
    for qps, threads in ((29.0, 2), (40.0, 2), (29.0, 4)):
        profiles.record(make_entry(qps, "observed", threads))
    await profiles.close()
    entries = {entry.configuration.threads: entry.qps for entry in load_dictionary(path)}
    assert entries == {2: 40.0, 4: 1119.0}


async def test_entries_changed_by_another_process_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dictionary.db"
    caplog.set_level("INFO", logger="synergai.profiles.service")
    add_to_dictionary(path, [make_entry(10.0), make_entry(20.0, threads=4)])
    profiles = ProfileService(path)
    async with watching(profiles) as reported:
        profiles.record(make_entry(5.0, "observed", threads=8))
        profiles.dictionary.put(make_entry(5.0, "observed", threads=8))
        await asyncio.to_thread(add_to_dictionary, path, [make_entry(11.0)])
        [changed] = (await reported.get()).put
        profiles.dictionary.put(changed)
        await asyncio.to_thread(add_to_dictionary, path, [make_entry(21.0, threads=4)])
        [second] = (await reported.get()).put
    assert (changed.qps, second.qps) == (11.0, 21.0)
    assert reported.empty()
    assert caplog.text.count("1 new or other profiles, 0 deleted") == 2


async def test_a_large_import_is_one_change(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    async with watching(ProfileService(path)) as reported:
        entries = [make_entry(10.0, threads=threads) for threads in range(1, 1000)]
        await asyncio.to_thread(add_to_dictionary, path, entries)
        assert len((await reported.get()).put) == len(entries)


@pytest.mark.parametrize("broken", ["read", "use"])
async def test_watching_survives_an_unexpected_error_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    fail, load = fail_once_or_twice(2), profiles._store.load

    def load_at_last() -> ConfigurationDictionary:
        fail()
        return load()

    if broken == "read":
        monkeypatch.setattr(profiles._store, "load", load_at_last)
    async with watching(profiles, (lambda _: fail()) if broken == "use" else None) as reported:
        await asyncio.to_thread(add_to_dictionary, path, [make_entry(11.0)])
        [entry] = (await asyncio.wait_for(reported.get(), 10.0)).put
    assert entry.qps == 11.0
    assert sum("cannot use changed profiles" in each for each in caplog.messages) == 2


async def test_entries_deleted_by_another_process_are_reported_even_after_a_failure(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dictionary.db"
    add_to_dictionary(path, [make_entry(10.0), make_entry(20.0, threads=4)])
    profiles = ProfileService(path)
    profiles.dictionary.put(make_entry(5.0, "observed", threads=8))  # not in the file
    fail = fail_once_or_twice(1)
    async with watching(profiles, lambda _: fail()) as reported:
        await asyncio.to_thread(delete_from_dictionary, path, lambda each: each.qps == 10.0)
        changes = await asyncio.wait_for(reported.get(), 30.0)
    assert changes == DictionaryChanges([], [make_entry(10.0)])


async def test_implausible_entries_of_the_file_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dictionary.db"
    add_to_dictionary(path, [make_entry(10.0), make_entry(1e-6, threads=4)])
    profiles = ProfileService(path)
    assert [entry.qps for entry in profiles.dictionary] == [10.0]
    assert "1 profiles are implausible" in caplog.text
    await profiles.close()


async def test_dictionary_cannot_grow_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("synergai.profiles.service.MAX_ENTRIES", 3)
    path = tmp_path / "dictionary.db"
    add_to_dictionary(path, [make_entry(10.0, threads=threads) for threads in (1, 2)])
    profiles = ProfileService(path)
    add_to_dictionary(path, [make_entry(10.0, threads=threads) for threads in range(10)])
    assert profiles._look(retry=False) is None
    assert "no others are added" in caplog.text
    await profiles.close()
