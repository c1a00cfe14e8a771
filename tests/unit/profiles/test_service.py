"""Observed profiles are written to the dictionary file."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from profiler.dictionary.files import add_to_dictionary, delete_from_dictionary, load_dictionary
from synergai.domain import Configuration
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.profiles.service import DictionaryChanges, ProfileService
from tests.cores import new_entry


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


async def test_entries_changed_by_another_process_are_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    add_to_dictionary(path, [make_entry(10.0), make_entry(20.0, threads=4)])
    profiles = ProfileService(path)
    reported: asyncio.Queue[DictionaryChanges] = asyncio.Queue()
    watching = asyncio.create_task(profiles.watch(reported.put_nowait, interval_s=0.01))
    profiles.record(make_entry(5.0, "observed", threads=8))
    profiles.dictionary.put(make_entry(5.0, "observed", threads=8))
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(11.0)])
    [changed] = (await reported.get()).put
    profiles.dictionary.put(changed)
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(21.0, threads=4)])
    [second] = (await reported.get()).put
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()
    assert (changed.qps, second.qps) == (11.0, 21.0)
    assert reported.empty()


async def test_a_large_import_is_one_change(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    reported: asyncio.Queue[DictionaryChanges] = asyncio.Queue()
    watching = asyncio.create_task(profiles.watch(reported.put_nowait, interval_s=0.01))
    entries = [make_entry(10.0, threads=threads) for threads in range(1, 1000)]
    await asyncio.to_thread(add_to_dictionary, path, entries)
    assert len((await reported.get()).put) == len(entries)
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()


@pytest.mark.parametrize("broken", ["read", "use"])
async def test_watching_survives_an_unexpected_error_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    reported: asyncio.Queue[DictionaryChanges] = asyncio.Queue()
    failures = iter([RuntimeError("a bug"), RuntimeError("a bug")])

    def fail_twice() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    def use(changes: DictionaryChanges) -> None:
        if broken == "use":
            fail_twice()
        reported.put_nowait(changes)

    if broken == "read":
        load = profiles._store.load

        def load_at_last() -> ConfigurationDictionary:
            fail_twice()
            return load()

        monkeypatch.setattr(profiles._store, "load", load_at_last)
    watching = asyncio.create_task(profiles.watch(use, interval_s=0.01))
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(11.0)])
    [entry] = (await asyncio.wait_for(reported.get(), 10.0)).put
    assert entry.qps == 11.0
    assert sum("cannot use changed profiles" in each for each in caplog.messages) == 2
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()


async def test_entries_deleted_by_another_process_are_reported_even_after_a_failure(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dictionary.db"
    add_to_dictionary(path, [make_entry(10.0), make_entry(20.0, threads=4)])
    profiles = ProfileService(path)
    profiles.dictionary.put(make_entry(5.0, "observed", threads=8))  # not in the file
    reported: asyncio.Queue[DictionaryChanges] = asyncio.Queue()
    failures = iter([RuntimeError("a bug")])

    def use(changes: DictionaryChanges) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        reported.put_nowait(changes)

    watching = asyncio.create_task(profiles.watch(use, interval_s=0.01))
    await asyncio.to_thread(delete_from_dictionary, path, lambda each: each.qps == 10.0)
    changes = await asyncio.wait_for(reported.get(), 30.0)
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()
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


async def test_change_by_another_process_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    reported: asyncio.Queue[DictionaryChanges] = asyncio.Queue()
    caplog.set_level("INFO", logger="synergai.profiles.service")
    watching = asyncio.create_task(profiles.watch(reported.put_nowait, interval_s=0.01))
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(10.0)])
    await reported.get()
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()
    assert "1 new or other profiles, 0 deleted" in caplog.text
