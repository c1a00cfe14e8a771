"""Profiles of model files that workers serve no more, or serve again."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.fleet.served_profiles import ServedProfiles
from gateway.fleet.worker import ConnectedWorker
from profiler.dictionary.files import add_to_dictionary, load_dictionary
from synergai.core.scheduling.events import ProfilesAdded, ProfilesRemoved
from synergai.domain import Configuration, Engine, Variant
from synergai.profiles.dictionary import MEASURED, OBSERVED, ProfileEntry
from synergai.profiles.service import ProfileService
from tests.cores import new_entry
from tests.unit.gateway.conftest import ECHO, ENGINE, make_worker

OLD, NEW = "a" * 64, "b" * 64


def an_entry(digest: str = OLD, *, label: str = MEASURED, variant: str = "") -> ProfileEntry:
    return new_entry(
        ECHO, "test", 100.0, Configuration(1, variant=variant), digest=digest, label=label
    )


def of_file(digest: str) -> Engine:
    return replace(ENGINE, digest=digest)


class Setup:
    """A dictionary with some entries, and workers that serve the old file.

    Args:
        path: the dictionary's file.
        entries: its entries.
        workers: the registered workers.
    """

    def __init__(
        self, path: Path, *entries: ProfileEntry, workers: Iterable[ConnectedWorker] = ()
    ) -> None:
        add_to_dictionary(path, entries)
        self.profiles = ProfileService(path)
        self.workers = list(workers) or [make_worker()]
        for worker in self.workers:
            worker.engines[ECHO] = of_file(OLD)
        self.served = ServedProfiles(self.profiles, lambda: self.workers)

    def change(self, engine: Engine, worker: int = 0) -> None:
        """Let a worker serve `engine`, and apply what follows as the core does."""
        changed = self.workers[worker]
        changed.engines[ECHO] = engine
        self.apply(self.served.engine_changed(changed, engine))

    def apply(self, events: Iterable[ProfilesAdded | ProfilesRemoved]) -> None:
        """Apply events to the dictionary as the core does."""
        for event in events:
            for entry in event.entries:
                if isinstance(event, ProfilesAdded):
                    self.profiles.dictionary.put(entry)
                else:
                    self.profiles.dictionary.remove(entry)

    @property
    def used(self) -> list[ProfileEntry]:
        """The entries that the core uses."""
        return list(self.profiles.dictionary)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dictionary.db"


async def test_profile_stays_in_use_while_a_worker_of_its_class_serves_the_file(
    path: Path,
) -> None:
    setup = Setup(path, an_entry(), workers=[make_worker("w1"), make_worker("w2")])
    setup.change(of_file(NEW), worker=0)
    assert setup.used == [an_entry()]
    setup.change(of_file(NEW), worker=1)
    assert setup.used == []


async def test_observed_profile_ends_with_the_file_that_was_observed(path: Path) -> None:
    setup = Setup(path)
    observed = an_entry("", label=OBSERVED)
    setup.profiles.dictionary.put(observed)
    setup.served.learned(observed)
    setup.change(of_file(OLD))
    assert setup.used == [observed]
    setup.change(of_file(NEW))
    assert setup.used == list(setup.profiles.entries()) == []
    await setup.profiles.close()
    [stored] = load_dictionary(path)
    assert (stored.label, stored.digest) == (OBSERVED, OLD)


async def test_each_variant_has_profiles_of_its_own_file(path: Path) -> None:
    kept, ended = an_entry(OLD, variant="fp32"), an_entry(OLD, variant="int8")
    setup = Setup(path, kept, ended)
    variants = (Variant(name="fp32", digest=OLD), Variant(name="int8", digest=NEW))
    setup.change(replace(of_file(OLD), variants=variants))
    assert setup.used == [kept]
    both = (Variant(name="fp32", digest=OLD), Variant(name="int8", digest=OLD))
    setup.workers[0].configurations = (Configuration(1),)
    setup.change(replace(of_file(OLD), variants=both))
    assert sorted(setup.used, key=str) == sorted([kept, ended], key=str)


async def test_new_profile_of_another_file_is_set_aside_and_one_of_the_served_file_is_used(
    path: Path,
) -> None:
    setup = Setup(path)
    setup.change(of_file(NEW))
    setup.apply(setup.served.put([an_entry()]))
    assert setup.used == []
    setup.apply(setup.served.put([an_entry(NEW)]))
    assert setup.used == [an_entry(NEW)]
    assert not setup.profiles.set_aside
