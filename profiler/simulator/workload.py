"""Workloads of the thesis's experiments: jobs, arrivals, deadlines, and actual durations.

24 jobs of random engines and query counts arrive by a Poisson process. Demand and frequency are
percentiles of the profile's inference times over all configurations and workers (thesis,
chapter 7). All randomness comes from the seed, so that every policy gets the same jobs, gaps
and deviations from the profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from synergai.core.scheduling.state.estimate import batches_for_jobs
from synergai.domain import EngineName, Job, JobId, WorkerClass, WorkerId
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import Configuration

Sessions: TypeAlias = Literal["cold", "warm", "prewarmed"]
"""T_pre is paid at every start (cold), once per session (warm), or never (prewarmed)."""
TPre: TypeAlias = Literal["none", "proportional", "fixed"]
"""T_pre is nothing, proportional to a job's queries (3900 pay all of it), or the same for all."""

QUERY_COUNTS: Final = (3900, 1950, 975, 488)
JOBS: Final = 24
_MEDIAN, _LOWER_QUARTILE = 50.0, 25.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """Demand and frequency as percentiles of the profile's inference times.

    Attributes:
        demand: percentile of an engine's times for the job's queries; gives the QoS time.
        frequency: percentile over all engines and query counts; gives the mean arrival gap.
    """

    name: str
    demand: float
    frequency: float


EXPERIMENTS: Final = {
    experiment.name: experiment
    for experiment in (
        Experiment("DL-FL", _MEDIAN, _MEDIAN),
        Experiment("DL-FH", _MEDIAN, _LOWER_QUARTILE),
        Experiment("DH-FL", _LOWER_QUARTILE, _MEDIAN),
        Experiment("DH-FH", _LOWER_QUARTILE, _LOWER_QUARTILE),
    )
}


class Profile:
    """A configuration dictionary as the simulator uses it.

    Attributes:
        engines: engines profiled on every worker class, sorted.
        classes: worker classes, strongest first.
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
            raise InvalidInput("no engine is profiled on every worker class of the profile")
        self.classes = sorted(names, key=self._total_log_qps, reverse=True)

    def _total_log_qps(self, worker_class: WorkerClass) -> float:
        """Return the summed logarithm of the best QPS over all engines."""
        return sum(math.log(self.best(e, worker_class).qps) for e in self.engines)

    def entries(self, engine: EngineName, worker_class: WorkerClass) -> list[ProfileEntry]:
        return self._entries[engine, worker_class]

    def best(self, engine: EngineName, worker_class: WorkerClass) -> ProfileEntry:
        """Return the configuration with the highest QPS."""
        return max(self._entries[engine, worker_class], key=lambda entry: entry.qps)

    def check_engine(self, engine: EngineName) -> None:
        """Check that an engine was profiled on all worker classes."""
        if engine not in self.engines:
            raise InvalidInput(
                f"engine {engine} has no profile on all worker classes: {', '.join(self.classes)}"
            )

    def qos_s(self, engine: EngineName, queries: int, percentile: float) -> float:
        """Return the QoS time of a job (thesis, Table 7.1)."""
        times = [queries / e.qps for name in self.classes for e in self.entries(engine, name)]
        return float(np.percentile(times, percentile))

    def capacity(self, fleet: Mapping[WorkerClass, int]) -> float:
        """Return the throughput of a fleet relative to that of one worker of each class.

        Throughput is the highest QPS, summed over workers; the mean is over engines.
        """
        shares = []
        for engine in self.engines:
            rates = {name: self.best(engine, name).qps for name in self.classes}
            rate = sum(rates[name] * count for name, count in fleet.items())
            shares.append(rate / sum(rates.values()))
        return sum(shares) / len(shares)

    def mean_gap_s(self, percentile: float) -> float:
        """Return the mean time between arrivals (thesis, Figure 7.2)."""
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
    """One experiment with one seed: the jobs, and durations hidden from policies.

    Attributes:
        sessions: when T_pre is paid.
        t_pre: how T_pre depends on the number of queries.
        jobs: in order of arrival.
        factors: actual over profiled times, by job and class.
        fleet: number of workers by class; one of each if it is empty.
    """

    experiment: str
    seed: int
    profile: Profile
    sessions: Sessions
    t_pre: TPre
    jobs: tuple[Job, ...]
    factors: dict[tuple[JobId, WorkerClass], float]
    fleet: Mapping[WorkerClass, int] = field(default_factory=dict)

    @property
    def workers(self) -> dict[WorkerId, WorkerClass]:
        """The workers and their classes, strongest class first.

        The only worker of a class is called like the class, the others `x86-1`, `x86-2`, ….
        """
        workers = {}
        for name in self.profile.classes:
            count = self.fleet.get(name, 0) if self.fleet else 1
            ids = [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
            workers.update(dict.fromkeys(map(WorkerId, ids), name))
        return workers

    def scheduler_dictionary(self) -> ConfigurationDictionary:
        dictionary = ConfigurationDictionary()
        for engine in self.profile.engines:
            for name in self.profile.classes:
                for entry in self.profile.entries(engine, name):
                    dictionary.put(self._scheduler_entry(entry))
        return dictionary

    def _scheduler_entry(self, entry: ProfileEntry) -> ProfileEntry:
        if self.t_pre == "fixed":
            return entry
        if self.t_pre == "none":
            return _with_rate(entry, entry.qps, 0.0)
        if self.sessions == "cold":
            # A proportional T_pre amounts to a lower rate.
            per_query_s = 1.0 / entry.qps + entry.t_pre_s / QUERY_COUNTS[0]
            return _with_rate(entry, 1.0 / per_query_s, 0.0)
        mean_share = sum(QUERY_COUNTS) / len(QUERY_COUNTS) / QUERY_COUNTS[0]
        return _with_rate(entry, entry.qps, entry.t_pre_s * mean_share)

    def per_query_s(self, job: Job, name: WorkerClass, configuration: Configuration) -> float:
        """Return the actual seconds per query of the job, in batches if they pay."""
        entry = self._entry(job.engine, name, configuration)
        batches = batches_for_jobs(entry)
        share = 1.0 if batches is None else batches.share(job.queries)
        return share * self.factors[job.id, name] / entry.qps

    def setup_s(
        self, job: Job, name: WorkerClass, configuration: Configuration, queries: int
    ) -> float:
        """Return the actual setup seconds of the job for `queries` of its queries."""
        share = queries / QUERY_COUNTS[0] if self.t_pre == "proportional" else 1.0
        return self.factors[job.id, name] * self.load_s(job.engine, name, configuration) * share

    def load_s(self, engine: EngineName, name: WorkerClass, configuration: Configuration) -> float:
        """Return the seconds that loading a session takes that no job needs yet."""
        return 0.0 if self.t_pre == "none" else self._entry(engine, name, configuration).t_pre_s

    def _entry(
        self, engine: EngineName, name: WorkerClass, configuration: Configuration
    ) -> ProfileEntry:
        for entry in self.profile.entries(engine, name):
            if entry.configuration == configuration:
                return entry
        raise InvalidInput(f"{engine} was not profiled on {name} with {configuration}")


def _with_rate(entry: ProfileEntry, qps: float, t_pre_s: float) -> ProfileEntry:
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
    count: int = JOBS,
    rate: float = 1.0,
    given: Sequence[Job] = (),
) -> Workload:
    """Draw the workload of an experiment and a seed.

    The same seed gives the same engines, query counts, gaps and deviations in every experiment.

    Args:
        sessions: when T_pre is paid.
        estimate_error: standard deviation of the logarithm of actual over profiled times, drawn
            once per job and worker class.
        rate: arrivals per second, relative to the experiment's, or to those given.
        given: at least `count` jobs in order of arrival, empty for the experiment's.
    """
    random = np.random.default_rng(seed)
    mean_gap_s = profile.mean_gap_s(experiment.frequency) / rate
    arrivals = np.cumsum(random.exponential(1.0, count)) * mean_gap_s
    engines = random.integers(len(profile.engines), size=count)
    counts = random.integers(len(QUERY_COUNTS), size=count)
    deviations = np.exp(estimate_error * random.standard_normal((count, len(profile.classes))))
    jobs = []
    for number in range(count):
        if given:
            known = given[number]
            engine, queries, arrival = known.engine, known.queries, known.arrival / rate
            profile.check_engine(engine)
            qos_s = known.deadline - known.arrival
        else:
            engine, queries = profile.engines[engines[number]], QUERY_COUNTS[counts[number]]
            arrival = float(arrivals[number])
            qos_s = profile.qos_s(engine, queries, experiment.demand)
        job = Job(
            id=JobId(f"{number:02d}"),
            engine=engine,
            queries=queries,
            arrival=arrival,
            deadline=arrival + qos_s,
            perishable=bool(given) and given[number].perishable,
        )
        jobs.append(job)
    return Workload(
        experiment=experiment.name,
        seed=seed,
        profile=profile,
        sessions=sessions,
        t_pre=t_pre,
        jobs=tuple(jobs),
        factors=_factors(jobs, profile.classes, deviations),
    )


def _factors(
    jobs: Sequence[Job], classes: Sequence[WorkerClass], deviations: NDArray[np.float64]
) -> dict[tuple[JobId, WorkerClass], float]:
    """Return actual over profiled times by job and worker class."""
    return {
        (job.id, name): float(deviations[row, column])
        for row, job in enumerate(jobs)
        for column, name in enumerate(classes)
    }
