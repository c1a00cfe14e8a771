"""Least fleets that keep violations below a limit at a given demand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.simulator.audit import audit
from synergai.simulator.outcomes import job_outcomes
from synergai.simulator.simulation import TooManyLate, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from synergai.domain import Configuration, EngineName, Job, WorkerClass
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.simulator.simulation import Run
    from synergai.simulator.workload import Profile, Workload

_DEADLINES: Final = 200
"""Most deadlines up to which the work of a fleet is summed."""
_SHORTEST_S: Final = 1e-9
_ROUNDING: Final = 1e-9
_BUSY: Final = 0.5
"""Share of the workers' time below which most of them have nothing to do."""

Fleet: TypeAlias = "Mapping[WorkerClass, int]"
_Key: TypeAlias = "tuple[tuple[WorkerClass, int], ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A fleet and how it performs; shares are 0 to 1 and means over seeds.

    Attributes:
        fleet: workers by class, without classes that have none.
        violations: share of the jobs that were late or rejected.
        busy: share of the workers' time in which they worked.
        joules: energy per query, that of idle workers included as far as the profile has their
            power; None if the power of a configuration is not known.
        cost: per hour; None if that of a class is not known.
        suffices: whether the violations are within the limit.
    """

    fleet: dict[WorkerClass, int]
    violations: float
    busy: float
    joules: float | None
    cost: float | None
    suffices: bool

    @property
    def rank(self) -> tuple[float, int]:
        """Key that is least for the best option: the cost if it is known, then the workers."""
        return (self.cost or 0.0, sum(self.fleet.values()))


@dataclass(slots=True)
class Planner:
    """Simulates fleets, each of them once.

    Attributes:
        workloads: the demand, one per seed.
        settings: of the scheduler.
        violations: largest share of violated jobs.
        max_workers: most workers of a class.
        costs: per worker and hour, by class.
        watts: power of a busy worker by class, for configurations whose power was not measured.
        on_fleet: called before a fleet is simulated.
    """

    workloads: Sequence[Workload]
    settings: SchedulingSettings
    violations: float
    max_workers: int
    costs: Mapping[WorkerClass, float]
    watts: Mapping[WorkerClass, float]
    on_fleet: Callable[[Fleet], object] = lambda _: None
    _known: dict[_Key, Option] = field(default_factory=dict)
    _too_late: set[_Key] = field(default_factory=set)

    @property
    def profile(self) -> Profile:
        """The profile of all workloads."""
        return self.workloads[0].profile

    def option(self, fleet: Fleet) -> Option:
        """Return how a fleet performs; it has a worker."""
        present = {name: count for name, count in fleet.items() if count}
        key = _key(present)
        if key not in self._known:
            self.on_fleet(present)
            self._known[key] = self._summarise(present, self._runs(present))
        return self._known[key]

    def sufficient(self, fleet: Fleet) -> Option | None:
        """Return how a fleet performs; None if it does not suffice, for which less is simulated."""
        present = {name: count for name, count in fleet.items() if count}
        key = _key(present)
        if key not in self._known and key not in self._too_late:
            self.on_fleet(present)
            try:
                runs = [] if self._too_few(present) else self._runs(present, self._most_late)
            except TooManyLate:
                runs = []
            if runs:
                self._known[key] = self._summarise(present, runs)
            else:
                self._too_late.add(key)
        option = self._known.get(key)
        return option if option is not None and option.suffices else None

    def least(self, shape: Fleet) -> Option | None:
        """Return the least multiple of a fleet that suffices; None if none can.

        Args:
            shape: workers by class, of which the classes stay in proportion.
        """
        largest = self.max_workers // max(shape.values())

        def times(factor: int) -> Option:
            return self.option({name: factor * count for name, count in shape.items()})

        too_few = self._too_few(shape)
        if too_few >= largest:
            return None
        factor = too_few + 1
        while not (found := times(factor)).suffices:
            if factor == largest or self._is_hopeless(found, times(min(largest, 2 * factor))):
                return None
            too_few, factor = factor, min(largest, 2 * factor)
        while factor - too_few > 1:
            middle = (factor + too_few) // 2
            if self.sufficient({name: middle * count for name, count in shape.items()}):
                factor = middle
            else:
                too_few = middle
        return times(factor)

    def _is_hopeless(self, option: Option, larger: Option) -> bool:
        """Return whether more workers do not help, most of which have nothing to do already."""
        return larger.violations >= option.violations and larger.busy < _BUSY

    def improve(self, option: Option) -> Option:
        """Remove and exchange workers as long as a better fleet suffices."""
        while True:
            # The best one that suffices is the first of these; the rest is not simulated.
            candidates = sorted(self._neighbours(option.fleet), key=self._rank)
            found = (each for fleet in candidates if (each := self.sufficient(fleet)) is not None)
            better = next(found, None)
            if better is None or better.rank >= option.rank:
                return option
            option = better

    def _rank(self, fleet: Fleet) -> tuple[float, int]:
        """Return the rank of a fleet's option."""
        return (self._cost(fleet) or 0.0, sum(fleet.values()))

    def _cost(self, fleet: Fleet) -> float | None:
        """Return the cost per hour; None if that of a class is not known."""
        present = {name: count for name, count in fleet.items() if count}
        if not present.keys() <= self.costs.keys():
            return None
        return sum(count * self.costs[name] for name, count in present.items())

    def _neighbours(self, fleet: Fleet) -> Iterator[dict[WorkerClass, int]]:
        """Yield fleets with a worker less, or with others for the price of less than one."""
        for name in fleet:
            fewer = {**fleet, name: fleet[name] - 1}
            if any(fewer.values()):
                yield fewer
            for other in self.profile.classes:
                price, cheaper = self.costs.get(name, 0.0), self.costs.get(other, 0.0)
                if other == name or not 0.0 < cheaper < price:
                    continue
                count = fewer.get(other, 0) + math.ceil(price / cheaper) - 1
                if count <= self.max_workers:
                    yield {**fewer, other: count}

    @property
    def _most_late(self) -> int:
        """Jobs of all seeds that may be late."""
        jobs = sum(len(workload.jobs) for workload in self.workloads)
        return math.floor(self.violations * jobs + _ROUNDING)

    def _too_few(self, shape: Fleet) -> int:
        """Return a multiple of a fleet that cannot suffice under any schedule; at least 0.

        Until some deadline, its workers cannot even run the queries of the smallest jobs that are
        due by then, or more jobs than may be late cannot be run within their own time.
        """
        return max(self._too_few_for(workload, shape) for workload in self.workloads)

    def _too_few_for(self, workload: Workload, shape: Fleet) -> int:
        # The limit holds for the mean over seeds, so that all late jobs may be in one run.
        late = self._most_late
        jobs = sorted(workload.jobs, key=lambda job: job.deadline)
        needed_s = [self._least_s(workload, job, shape) for job in jobs]
        began = min(job.arrival for job in jobs)
        alone = sorted(
            seconds / max(_SHORTEST_S, job.deadline - job.arrival)
            for seconds, job in zip(needed_s, jobs, strict=True)
        )
        multiples = alone[: max(0, len(jobs) - late)]
        step = max(1, len(jobs) // _DEADLINES)
        for end in range(len(jobs), late, -step):
            due = sorted(needed_s[:end])[: end - late]
            multiples.append(sum(due) / max(_SHORTEST_S, jobs[end - 1].deadline - began))
        return max(0, math.ceil(max(multiples, default=0.0)) - 1)

    def _least_s(self, workload: Workload, job: Job, shape: Fleet) -> float:
        """Return the least seconds in which a fleet could run all queries of a job."""
        rate = 0.0
        for name, count in shape.items():
            entries = self.profile.entries(job.engine, name)
            fastest_s = min(workload.per_query_s(job, name, e.configuration) for e in entries)
            rate += count / fastest_s
        return job.queries / rate

    def _runs(self, fleet: dict[WorkerClass, int], most_late: int | None = None) -> list[Run]:
        """Return a run of each seed.

        Raises:
            TooManyLate: more than `most_late` jobs of all of them together are late.
        """
        runs = []
        for workload in self.workloads:
            run = simulate(replace(workload, fleet=fleet), self.settings, most_late=most_late)
            audit(run)
            runs.append(run)
            if most_late is not None:
                most_late -= sum(_violated(run))
        return runs

    def _summarise(self, fleet: dict[WorkerClass, int], runs: Sequence[Run]) -> Option:
        late = [violated for run in runs for violated in _violated(run)]
        violations = sum(late) / len(late)
        joules = [self._joules_per_query(run) for run in runs]
        known = [each for each in joules if each is not None]
        return Option(
            fleet=fleet,
            violations=violations,
            busy=fmean(map(_busy, runs)),
            joules=fmean(known) if len(known) == len(joules) else None,
            cost=self._cost(fleet),
            suffices=violations <= self.violations,
        )

    def _joules_per_query(self, run: Run) -> float | None:
        classes = run.workload.workers
        joules, queries = 0.0, 0
        idle_s = dict.fromkeys(classes, _duration_s(run))
        for span in run.spans:
            name = classes[span.worker_id]
            watts = self._busy_watts(run, name, span.engine, span.configuration)
            if not watts:
                return None
            joules += watts * (span.ended - span.started)
            idle_s[span.worker_id] -= span.ended - span.started
            queries += span.done
        idle = {name: self._idle_watts(name) for name in set(classes.values())}
        joules += sum(idle[classes[worker]] * seconds for worker, seconds in idle_s.items())
        return joules / queries if queries else None

    def _busy_watts(
        self, run: Run, name: WorkerClass, engine: EngineName, configuration: Configuration
    ) -> float:
        for entry in run.workload.profile.entries(engine, name):
            if entry.configuration == configuration and entry.watts:
                return entry.watts
        return self.watts.get(name, 0.0)

    def _idle_watts(self, name: WorkerClass) -> float:
        """Return the mean power of an idle worker; 0 if it was not measured."""
        measured = [
            entry.idle_watts
            for engine in self.profile.engines
            for entry in self.profile.entries(engine, name)
            if entry.idle_watts
        ]
        return fmean(measured) if measured else 0.0


def plan(planner: Planner) -> list[Option]:
    """Return the least fleets of each class alone, and the best mix, which is first.

    The best mix is found by removing and exchanging workers of the least fleets. No fleet that
    differs from it by one such step is better, but another mix may be. Empty if no fleet suffices.
    """
    classes = planner.profile.classes
    alone = [found for name in classes if (found := planner.least({name: 1})) is not None]
    starts = list(alone)
    if len(classes) > 1 and (mixed := planner.least(dict.fromkeys(classes, 1))) is not None:
        starts.append(mixed)
    if not starts:
        return []
    best = min((planner.improve(start) for start in starts), key=lambda each: each.rank)
    return [best, *(each for each in alone if each.fleet != best.fleet)]


def _key(fleet: Fleet) -> _Key:
    return tuple(sorted(fleet.items()))


def _violated(run: Run) -> list[bool]:
    """Return whether each job was late or did not finish."""
    outcomes = job_outcomes(run.workload.jobs, run.spans, run.finished)
    return [outcome.violated for outcome in outcomes]


def _duration_s(run: Run) -> float:
    ends = [span.ended for span in run.spans]
    return max(ends, default=0.0) - min(job.arrival for job in run.workload.jobs)


def _busy(run: Run) -> float:
    """Return the share of the workers' time in which assignments ran."""
    available_s = _duration_s(run) * len(run.workload.workers)
    return sum(span.ended - span.started for span in run.spans) / available_s if available_s else 0
