"""The thesis's experiments: which jobs arrive when, with which deadlines, and the truth of them.

24 jobs of random engines and query counts arrive by a Poisson process. Demands and
frequencies are percentiles of the profile's own inference times, over all configurations and
workers (thesis, chapter 7). Everything is drawn from the seed alone, so that every policy
meets the same jobs, the same gaps and the same deviations from the profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from synergai.domain import EngineName, Job, JobId, WorkerClass
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.domain import Configuration

Sessions: TypeAlias = Literal["cold", "warm", "prewarmed"]
"""Whether T_pre is paid at every start, once per session, or was paid beforehand."""
TPre: TypeAlias = Literal["fixed", "proportional"]
"""Whether T_pre is the same for every job, or grows with its queries (3900 pay all of it)."""

QUERY_COUNTS: Final = (3900, 1950, 975, 488)
JOBS: Final = 24
_LOW, _HIGH = 50.0, 25.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """A demand and a frequency, as percentiles of the profile's inference times.

    Attributes:
        demand: of an engine's times for the job's queries: the QoS time.
        frequency: of all engines' times for all query counts: the mean gap between arrivals.
    """

    name: str
    demand: float
    frequency: float


EXPERIMENTS: Final = {
    experiment.name: experiment
    for experiment in (
        Experiment("DL-FL", _LOW, _LOW),
        Experiment("DL-FH", _LOW, _HIGH),
        Experiment("DH-FL", _HIGH, _LOW),
        Experiment("DH-FH", _HIGH, _HIGH),
    )
}


class Profile:
    """What the simulation draws on of a configuration dictionary.

    Attributes:
        engines: those profiled on every worker class, sorted.
        classes: the worker classes, the strongest first.

    Raises:
        InvalidInput: on construction, if no engine is profiled on all classes.
    """

    def __init__(self, entries: Iterable[ProfileEntry]) -> None:
        self._entries: dict[tuple[EngineName, WorkerClass], list[ProfileEntry]] = {}
        for entry in entries:
            self._entries.setdefault((entry.engine, entry.worker_class), []).append(entry)
        names = {worker_class for _, worker_class in self._entries}
        engines = {engine for engine, _ in self._entries}
        self.engines = sorted(
            e for e in engines if all((e, name) in self._entries for name in names)
        )
        if not self.engines:
            raise InvalidInput(
                "the profile has no engine that is known on every one of its worker classes"
            )
        self.classes = sorted(names, key=self._strength, reverse=True)

    def _strength(self, worker_class: WorkerClass) -> float:
        """The mean logarithm of the best QPS: how many times faster, on average."""
        return sum(math.log(self.best(e, worker_class).qps) for e in self.engines)

    def entries(self, engine: EngineName, worker_class: WorkerClass) -> list[ProfileEntry]:
        """All configurations of an engine on a class."""
        return self._entries[engine, worker_class]

    def best(self, engine: EngineName, worker_class: WorkerClass) -> ProfileEntry:
        """The configuration with the highest QPS."""
        return max(self._entries[engine, worker_class], key=lambda entry: entry.qps)

    def qos_s(self, engine: EngineName, queries: int, percentile: float) -> float:
        """The QoS time of a job (thesis, Table 7.1)."""
        times = [queries / e.qps for name in self.classes for e in self.entries(engine, name)]
        return float(np.percentile(times, percentile))

    def gap_s(self, percentile: float) -> float:
        """The mean time between arrivals (thesis, Figure 7.2)."""
        times = [
            queries / entry.qps
            for engine in self.engines
            for name in self.classes
            for entry in self.entries(engine, name)
            for queries in QUERY_COUNTS
        ]
        return float(np.percentile(times, percentile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One experiment with one seed: the jobs, and the truth that no policy knows.

    Attributes:
        factors: by how much each job's times on each class differ from the profile.
    """

    experiment: str
    seed: int
    profile: Profile
    sessions: Sessions
    t_pre: TPre
    jobs: tuple[Job, ...]
    factors: dict[tuple[JobId, WorkerClass], float]

    def beliefs(self) -> ConfigurationDictionary:
        """A new dictionary that says what a scheduler is to believe."""
        dictionary = ConfigurationDictionary()
        for engine in self.profile.engines:
            for name in self.profile.classes:
                for entry in self.profile.entries(engine, name):
                    dictionary.put(self._believed(entry))
        return dictionary

    def _believed(self, entry: ProfileEntry) -> ProfileEntry:
        if self.t_pre == "fixed":
            return entry
        if self.sessions == "cold":
            # T_pre is in proportion to the queries, so that it amounts to a lower rate.
            per_query_s = 1.0 / entry.qps + entry.t_pre_s / QUERY_COUNTS[0]
            return _rated(entry, 1.0 / per_query_s, 0.0)
        mean_share = sum(QUERY_COUNTS) / len(QUERY_COUNTS) / QUERY_COUNTS[0]
        return _rated(entry, entry.qps, entry.t_pre_s * mean_share)

    def per_query_s(self, job: Job, name: WorkerClass, configuration: Configuration) -> float:
        """Seconds that a query of the job really takes."""
        return self.factors[job.id, name] / self._entry(job.engine, name, configuration).qps

    def setup_s(
        self, job: Job, name: WorkerClass, configuration: Configuration, queries: int
    ) -> float:
        """Seconds that it really takes to make the job's engine ready for `queries` of it."""
        entry = self._entry(job.engine, name, configuration)
        share = 1.0 if self.t_pre == "fixed" else queries / QUERY_COUNTS[0]
        return self.factors[job.id, name] * entry.t_pre_s * share

    def _entry(
        self, engine: EngineName, name: WorkerClass, configuration: Configuration
    ) -> ProfileEntry:
        for entry in self.profile.entries(engine, name):
            if entry.configuration == configuration:
                return entry
        raise InvalidInput(f"{engine} was not profiled on {name} with {configuration}")


def _rated(entry: ProfileEntry, qps: float, t_pre_s: float) -> ProfileEntry:
    return ProfileEntry(
        engine=entry.engine,
        worker_class=entry.worker_class,
        configuration=entry.configuration,
        qps=qps,
        model_load_s=t_pre_s,
        watts=entry.watts,
        label=entry.label,
    )


def draw(
    profile: Profile,
    experiment: Experiment,
    seed: int,
    *,
    sessions: Sessions = "cold",
    t_pre: TPre = "fixed",
    estimate_error: float = 0.15,
) -> Workload:
    """The workload of an experiment and a seed.

    The same seed gives the same engines, query counts, relative gaps and deviations in every
    experiment.

    Args:
        profile: what the times are taken from.
        experiment: demand and frequency.
        seed: of all that is random.
        sessions: when T_pre is paid.
        t_pre: how much of it.
        estimate_error: standard deviation of the logarithm of real over profiled times, drawn
            once for each job and worker class.
    """
    random = np.random.default_rng(seed)
    gap_s = profile.gap_s(experiment.frequency)
    arrivals = np.cumsum(random.exponential(1.0, JOBS)) * gap_s
    engines = random.integers(len(profile.engines), size=JOBS)
    counts = random.integers(len(QUERY_COUNTS), size=JOBS)
    deviations = np.exp(estimate_error * random.standard_normal((JOBS, len(profile.classes))))
    jobs = []
    for number in range(JOBS):
        engine, queries = profile.engines[engines[number]], QUERY_COUNTS[counts[number]]
        arrival = float(arrivals[number])
        qos_s = profile.qos_s(engine, queries, experiment.demand)
        jobs.append(
            Job(
                id=JobId(f"{number:02d}"),
                engine=engine,
                queries=queries,
                arrival=arrival,
                deadline=arrival + qos_s,
            )
        )
    return Workload(
        experiment=experiment.name,
        seed=seed,
        profile=profile,
        sessions=sessions,
        t_pre=t_pre,
        jobs=tuple(jobs),
        factors={
            (job.id, name): float(deviations[row, column])
            for row, job in enumerate(jobs)
            for column, name in enumerate(profile.classes)
        },
    )
