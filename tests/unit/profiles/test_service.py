"""Observed profiles are written to the dictionary file."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.files import add_to_dictionary, load_dictionary
from synergai.profiles.service import ProfileService

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.profiles.dictionary import ConfigurationDictionary


def make_entry(qps: float, label: str = "measured", threads: int = 2) -> ProfileEntry:
    return ProfileEntry(
        engine=EngineName("digits"),
        worker_class=WorkerClass("cloud"),
        configuration=Configuration(threads),
        qps=qps,
        label=label,
    )


async def test_observed_entry_is_stored_with_its_date(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    profiles = ProfileService(tmp_path / "dictionary.db")
    profiles.record(
        ProfileEntry(
            engine=EngineName("digits"),
            worker_class=WorkerClass("cloud"),
            configuration=Configuration(2),
            qps=100.0,
            label="observed",
        )
    )
    await profiles.close()

    [entry] = load_dictionary(tmp_path / "dictionary.db")
    assert entry.label == "observed"
    assert before <= datetime.fromisoformat(entry.measured_at) <= datetime.now(UTC)


async def test_observed_entry_of_the_core_is_shown_with_its_date(tmp_path: Path) -> None:
    profiles = ProfileService(tmp_path / "dictionary.db")
    observed = make_entry(29.0, "observed")
    profiles.record(observed)
    assert datetime.fromisoformat(profiles.dated(observed).measured_at).tzinfo is not None
    measured = make_entry(29.0)
    assert profiles.dated(measured) == measured
    await profiles.close()


async def test_observed_entry_never_replaces_a_measured_one(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    add_to_dictionary(path, [make_entry(1119.0)])
    profiles.record(make_entry(29.0, "observed"))
    await profiles.close()
    [entry] = load_dictionary(path)
    assert (entry.label, entry.qps) == ("measured", 1119.0)


async def test_observed_entry_replaces_an_observed_one(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    profiles.record(make_entry(29.0, "observed"))
    profiles.record(make_entry(40.0, "observed"))
    await profiles.close()
    [entry] = load_dictionary(path)
    assert entry.qps == 40.0


async def test_entries_changed_by_another_process_are_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    add_to_dictionary(path, [make_entry(10.0), make_entry(20.0, threads=4)])
    profiles = ProfileService(path)
    reported: asyncio.Queue[Sequence[ProfileEntry]] = asyncio.Queue()
    watching = asyncio.create_task(profiles.watch(reported.put_nowait, interval_s=0.01))
    profiles.record(make_entry(5.0, "observed", threads=8))
    profiles.dictionary.put(make_entry(5.0, "observed", threads=8))
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(11.0)])
    [changed] = await reported.get()
    profiles.dictionary.put(changed)
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(21.0, threads=4)])
    [second] = await reported.get()
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()
    assert (changed.qps, second.qps) == (11.0, 21.0)
    assert reported.empty()


async def test_a_large_import_is_one_change(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    reported: asyncio.Queue[Sequence[ProfileEntry]] = asyncio.Queue()
    watching = asyncio.create_task(profiles.watch(reported.put_nowait, interval_s=0.01))
    entries = [make_entry(10.0, threads=threads) for threads in range(1, 1000)]
    await asyncio.to_thread(add_to_dictionary, path, entries)
    assert len(await reported.get()) == len(entries)
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()


@pytest.mark.parametrize("broken", ["read", "use"])
async def test_watching_survives_an_unexpected_error_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = tmp_path / "dictionary.db"
    profiles = ProfileService(path)
    reported: asyncio.Queue[Sequence[ProfileEntry]] = asyncio.Queue()
    failures = iter([RuntimeError("a bug"), RuntimeError("a bug")])

    def fail_twice() -> None:
        if (error := next(failures, None)) is not None:
            raise error

    def use(entries: Sequence[ProfileEntry]) -> None:
        if broken == "use":
            fail_twice()
        reported.put_nowait(entries)

    if broken == "read":
        load = profiles._store.load

        def load_at_last() -> ConfigurationDictionary:
            fail_twice()
            return load()

        monkeypatch.setattr(profiles._store, "load", load_at_last)
    watching = asyncio.create_task(profiles.watch(use, interval_s=0.01))
    await asyncio.to_thread(add_to_dictionary, path, [make_entry(11.0)])
    [entry] = await asyncio.wait_for(reported.get(), 10.0)
    assert entry.qps == 11.0
    assert sum("cannot use changed profiles" in each for each in caplog.messages) == 2
    watching.cancel()
    await asyncio.wait([watching])
    await profiles.close()
