"""A workload's machines as model directories and a dictionary for a real fleet, sped up.

Emulated workers have no power modes to switch: the configurations of a worker class are told
apart by the number of threads alone, and `numbered` renames them so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from synergai.domain import Configuration, EngineName
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore
from synergai.simulator.workload import Profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from synergai.domain import Job, WorkerClass
    from synergai.simulator.workload import Workload

_DEFINITION: Final = 'backend = "emulated"\nfile = "model.toml"\n'


def numbers(profile: Profile, worker_class: WorkerClass) -> dict[Configuration, int]:
    """The configurations of a worker class, counted from 1."""
    found = {
        entry.configuration
        for engine in profile.engines
        for entry in profile.entries(engine, worker_class)
    }
    # Modes are mostly numbers themselves: 10 comes after 2.
    order = sorted(found, key=lambda c: (c.threads, len(c.power_mode), c))
    return {configuration: number for number, configuration in enumerate(order, 1)}


def numbered(profile: Profile) -> Profile:
    """The same profile with the configurations of each class called ``threads=1`` and so on."""
    entries: list[ProfileEntry] = []
    for worker_class in profile.classes:
        number = numbers(profile, worker_class)
        for engine in profile.engines:
            entries += (
                replace(entry, configuration=Configuration(number[entry.configuration]))
                for entry in profile.entries(engine, worker_class)
            )
    return Profile(entries)


def predefined(profile: Profile, options: Mapping[str, str]) -> dict[str, str]:
    """One configuration for each worker class, called as `numbered` calls it.

    Args:
        profile: not yet `numbered`.
        options: what the operator wants, by worker class; by default it is the largest one.
    """
    found = {}
    for worker_class in profile.classes:
        number = numbers(profile, worker_class)
        largest = max(number.values())
        wanted = options.get(worker_class)
        chosen = number.get(Configuration.parse(wanted), largest) if wanted else largest
        found[str(worker_class)] = str(Configuration(chosen))
    return found


@dataclass(frozen=True, slots=True)
class Emulation:
    """Files below `directory` that make a fleet of `workload`'s machines.

    Attributes:
        workload: of a `numbered` profile.
        scale: how many times faster than the profile all of it goes.
    """

    workload: Workload
    scale: float
    directory: Path

    @property
    def dictionary(self) -> Path:
        """What the gateway is to believe."""
        return self.directory / "dictionary.db"

    def models(self, worker_class: WorkerClass) -> Path:
        """The model directory of the worker of a class."""
        return self.directory / "models" / worker_class

    def write(self) -> None:
        """Write all files but the paces of jobs, which have no ids yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with DictionaryStore(self.dictionary) as store:
            store.put_all(map(self._sped_up, self.workload.beliefs()))
        profile = self.workload.profile
        for worker_class in profile.classes:
            for engine in self.engines():
                folder = self.models(worker_class) / engine
                folder.mkdir(parents=True)
                text = self._model(profile.entries(engine, worker_class))
                (folder / "engine.toml").write_text(_DEFINITION, "utf-8")
                (folder / "model.toml").write_text(text, "utf-8")
                self._paces(worker_class, engine).touch()

    def engines(self) -> list[EngineName]:
        """Those that the workload's jobs are of."""
        return sorted({job.engine for job in self.workload.jobs})

    def threads(self, worker_class: WorkerClass) -> list[int]:
        """All configurations of the worker of a class."""
        return sorted(numbers(self.workload.profile, worker_class).values())

    def preload(self, worker_class: WorkerClass, wanted: str = "") -> dict[str, str]:
        """A configuration of every engine, as ``--preload`` takes them.

        It is the wanted one if the engine is profiled in it, else the engine's fastest.
        """
        profile = self.workload.profile
        found = {}
        for engine in self.engines():
            known = {str(e.configuration) for e in profile.entries(engine, worker_class)}
            best = str(profile.best(engine, worker_class).configuration)
            found[str(engine)] = wanted if wanted in known else best
        return found

    def reveal(self, job: Job, submitted_as: str) -> None:
        """Tell the engines how far a job is from the profile, now that it has an id."""
        for worker_class in self.workload.profile.classes:
            factor = self.workload.factors[job.id, worker_class]
            with self._paces(worker_class, job.engine).open("a", encoding="utf-8") as paces:
                paces.write(f"{submitted_as} {factor!r}\n")

    def _paces(self, worker_class: WorkerClass, engine: EngineName) -> Path:
        return self.models(worker_class) / engine / "paces.txt"

    def _model(self, entries: Iterable[ProfileEntry]) -> str:
        tables = []
        for entry in entries:
            query_s = 1.0 / entry.qps / self.scale
            setup_s = entry.t_pre_s / self.scale
            tables.append(
                "[[configurations]]\n"
                f"threads = {entry.configuration.threads}\n"
                f"query_s = {query_s!r}\n"
                f"setup_s = {setup_s!r}\n"
            )
        return "\n".join(tables)

    def _sped_up(self, entry: ProfileEntry) -> ProfileEntry:
        return ProfileEntry(
            engine=entry.engine,
            worker_class=entry.worker_class,
            configuration=entry.configuration,
            qps=entry.qps * self.scale,
            model_load_s=entry.t_pre_s / self.scale,
            watts=entry.watts,
            label="emulated",
        )
