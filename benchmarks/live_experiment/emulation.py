"""Model directories and dictionary of a workload's emulated workers, for a live experiment.

Emulated workers have no power modes: the configurations of a worker class differ only in their
number of threads, and `number_configurations` renames them accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.simulator.workload import Profile
from synergai.domain import Configuration, EngineName
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from profiler.simulator.workload import Workload
    from synergai.domain import Job, WorkerClass

_DEFINITION: Final = 'backend = "emulated"\nfile = "model.toml"\n'


def configuration_numbers(profile: Profile, worker_class: WorkerClass) -> dict[Configuration, int]:
    """Return the number of each configuration of a worker class, starting at 1."""
    configurations = {
        entry.configuration
        for engine in profile.engines
        for entry in profile.entries(engine, worker_class)
    }
    # Modes are mostly numeric: 10 sorts after 2.
    order = sorted(configurations, key=lambda c: (c.threads, len(c.power_mode), c))
    return {configuration: number for number, configuration in enumerate(order, 1)}


def number_configurations(profile: Profile) -> Profile:
    """Return the profile with each class's configurations renamed ``threads=1`` and so on."""
    entries: list[ProfileEntry] = []
    for worker_class in profile.classes:
        number_of = configuration_numbers(profile, worker_class)
        for engine in profile.engines:
            entries += (
                replace(entry, configuration=Configuration(number_of[entry.configuration]))
                for entry in profile.entries(engine, worker_class)
            )
    return Profile(entries)


@dataclass(frozen=True, slots=True)
class Emulation:
    """Files in `directory` that emulate `workload`'s workers.

    Attributes:
        workload: with numbered configurations.
    """

    workload: Workload
    scale: float
    directory: Path

    @property
    def dictionary(self) -> Path:
        """Path of the gateway's configuration dictionary."""
        return self.directory / "dictionary.db"

    def models(self, worker_class: WorkerClass) -> Path:
        """Return the model directory of a class's worker."""
        return self.directory / "models" / worker_class

    def write(self) -> None:
        """Write all files except the paces of jobs, which have no ids yet."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with DictionaryStore(self.dictionary) as store:
            store.put_all(map(self._scaled, self.workload.scheduler_dictionary()))
        profile = self.workload.profile
        for worker_class in profile.classes:
            for engine in self.engines():
                folder = self.models(worker_class) / engine
                folder.mkdir(parents=True)
                text = self._model_text(profile.entries(engine, worker_class))
                (folder / "engine.toml").write_text(_DEFINITION, "utf-8")
                (folder / "model.toml").write_text(text, "utf-8")
                self._pace_file(worker_class, engine).touch()

    def engines(self) -> list[EngineName]:
        """Return the engines of the workload's jobs, sorted."""
        return sorted({job.engine for job in self.workload.jobs})

    def threads(self, worker_class: WorkerClass) -> list[int]:
        """Return the thread counts that stand for a class's configurations."""
        return sorted(configuration_numbers(self.workload.profile, worker_class).values())

    def pin_options(self, worker_class: WorkerClass) -> dict[str, str]:
        """Return the fastest configuration of every engine, as passed to ``--pin``."""
        profile = self.workload.profile
        return {
            str(engine): str(profile.best(engine, worker_class).configuration)
            for engine in self.engines()
        }

    def write_pace(self, job: Job, submitted_as: str) -> None:
        """Tell the engines a job's deviation from the profile once its id is known."""
        for worker_class in self.workload.profile.classes:
            factor = self.workload.factors[job.id, worker_class]
            with self._pace_file(worker_class, job.engine).open("a", encoding="utf-8") as paces:
                paces.write(f"{submitted_as} {factor!r}\n")

    def _pace_file(self, worker_class: WorkerClass, engine: EngineName) -> Path:
        return self.models(worker_class) / engine / "paces.txt"

    def _model_text(self, entries: Iterable[ProfileEntry]) -> str:
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

    def _scaled(self, entry: ProfileEntry) -> ProfileEntry:
        return ProfileEntry(
            engine=entry.engine,
            worker_class=entry.worker_class,
            configuration=entry.configuration,
            qps=entry.qps * self.scale,
            model_load_s=entry.t_pre_s / self.scale,
            watts=entry.watts,
            label="emulated",
        )
