"""Least fleets that keep violations within a limit at a given demand.

A fleet suffices if the mean over seeds and a margin of its standard errors are within the limit,
and so they are on as many fresh seeds: the cheapest of many fleets is often one that happens to
pass. A fleet whose mean over a few of the seeds is above the limit is not looked at any further.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Final, TypeAlias

from profiler.simulator.simulation import TooManyLate, job_outcomes, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from profiler.simulator.simulation import SimulationRun
    from profiler.simulator.workload import Profile, Workload
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.domain import Job, WorkerClass

_DEADLINES: Final = 200
"""Most deadlines up to which the work of a fleet is summed."""
_SHORTEST_S: Final = 1e-9
_ROUNDING: Final = 1e-9
MARGIN: Final = 1.6
"""Standard errors by which the mean violations of a fleet are below the limit."""
_SCREENED: Final = 4
"""Seeds whose mean has to be within the limit before others are simulated."""
_FIRST: Final = 3
"""Seeds after which a fleet is given up that clearly has more violations."""
MAX_WORKERS: Final = 256
_BUSY: Final = 0.5
"""Share of the workers' time below which most of them have nothing to do."""

Fleet: TypeAlias = "Mapping[WorkerClass, int]"
_Key: TypeAlias = "tuple[tuple[WorkerClass, int], ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOption:
    """A fleet that suffices, and how it performs on fresh seeds; shares are 0 to 1.

    Attributes:
        fleet: workers by class, without classes that have none.
        violations: share of the jobs that were late or rejected.
        sure: probability that the share is within the limit in the long run.
        busy: share of the workers' time in which they worked.
        cost: per hour; None if that of a class is not known.
    """

    fleet: dict[WorkerClass, int]
    violations: float
    error: float
    sure: float
    busy: float
    cost: float | None


@dataclass(slots=True)
class CapacityPlanner:
    """Finds fleets that suffice by simulation.

    Attributes:
        workloads: the demand, one per seed.
        fresh: the same with other seeds, which confirm what suffices.
        violations: largest share of violated jobs.
        costs: per worker and hour, by class.
        max_workers: most workers of a class to consider.
        on_fleet: called before a fleet is simulated.
    """

    workloads: Sequence[Workload]
    fresh: Sequence[Workload]
    settings: SchedulingSettings
    violations: float
    costs: Mapping[WorkerClass, float]
    max_workers: int = MAX_WORKERS
    on_fleet: Callable[[Fleet], object] = lambda _: None
    _screened: dict[_Key, bool] = field(default_factory=dict)
    _known: dict[_Key, FleetOption | None] = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        return self.workloads[0].profile

    def may_suffice(self, fleet: Fleet) -> bool:
        """Return whether the mean over a few seeds is within the limit. The fleet has a worker."""
        key = _key(fleet)
        if key not in self._screened:
            self.on_fleet(fleet)
            self._screened[key] = not self._too_few(fleet) and self._mean_is_within(fleet)
        return self._screened[key]

    def sufficient(self, fleet: Fleet) -> FleetOption | None:
        """Return how a fleet performs; None if it does not suffice. It has a worker."""
        key = _key(fleet)
        if key not in self._known:
            runs = None
            if self.may_suffice(fleet) and self._runs(fleet, self.workloads):
                runs = self._runs(fleet, self.fresh)
            self._known[key] = self._summarise(dict(fleet), runs) if runs else None
        return self._known[key]

    def least(self, shape: Fleet) -> FleetOption | None:
        """Return the least multiple of a fleet that suffices; None if none can."""
        largest = self.max_workers // max(shape.values())

        def times(factor: int) -> dict[WorkerClass, int]:
            return {name: factor * count for name, count in shape.items()}

        too_few = self._too_few(shape)
        if too_few >= largest:
            return None
        factor = too_few + 1
        while not self.may_suffice(times(factor)):
            larger = min(largest, 2 * factor)
            if factor == largest or self._is_hopeless(times(factor), times(larger)):
                return None
            too_few, factor = factor, larger
        while factor - too_few > 1:
            middle = (factor + too_few) // 2
            if self.may_suffice(times(middle)):
                factor = middle
            else:
                too_few = middle
        found = (self.sufficient(times(each)) for each in range(factor, largest + 1))
        return next((option for option in found if option is not None), None)

    def _is_hopeless(self, fleet: Fleet, larger: Fleet) -> bool:
        """Return whether more workers do not help because most are idle."""
        few = self.workloads[:_SCREENED]
        late = sum(sum(_violated(self._run(fleet, each))) for each in few)
        runs = [self._run(larger, each) for each in few]
        return sum(sum(_violated(run)) for run in runs) >= late and fmean(map(_busy, runs)) < _BUSY

    def improve(self, fleet: Fleet) -> None:
        """Remove and exchange workers as long as a better fleet suffices."""
        better: Fleet | None = fleet
        while better is not None:
            # The best one that suffices is the first of these; the rest is not simulated.
            candidates = sorted(self._neighbours(better), key=self._rank)
            rank = self._rank(better)
            better = next(
                (each for each in candidates if self._rank(each) < rank and self.sufficient(each)),
                None,
            )

    def best(self) -> FleetOption | None:
        """Return the best fleet that suffices of those that were simulated."""
        found = [option for option in self._known.values() if option is not None]
        return min(found, key=lambda option: self._rank(option.fleet), default=None)

    def _rank(self, fleet: Fleet) -> tuple[float, int]:
        """Return a key that is least for the best fleet: its cost if known, then its workers."""
        return (self._cost(fleet) or 0.0, sum(fleet.values()))

    def _cost(self, fleet: Fleet) -> float | None:
        """Return the cost per hour; None if that of a class is not known."""
        if not fleet.keys() <= self.costs.keys():
            return None
        return sum(count * self.costs[name] for name, count in fleet.items())

    def _neighbours(self, fleet: Fleet) -> Iterator[dict[WorkerClass, int]]:
        """Yield fleets with a worker less, or with others for the price of less than one."""
        for name in fleet:
            fewer = {each: count - (each == name) for each, count in fleet.items()}
            fewer = {each: count for each, count in fewer.items() if count}
            if fewer:
                yield fewer
            for other in self.profile.classes:
                price, cheaper = self.costs.get(name, 0.0), self.costs.get(other, 0.0)
                if other == name or not 0.0 < cheaper < price:
                    continue
                count = fewer.get(other, 0) + math.ceil(price / cheaper) - 1
                if count <= self.max_workers:
                    yield {**fewer, other: count}

    def _too_few(self, shape: Fleet) -> int:
        """Return a multiple of a fleet that cannot suffice under any schedule; at least 0.

        Until some deadline, its workers cannot even run the queries of the smallest jobs that are
        due by then, or more jobs than may be late cannot be run within their own time.
        """
        return max(self._too_few_for(workload, shape) for workload in self.workloads)

    def _too_few_for(self, workload: Workload, shape: Fleet) -> int:
        late = self._most_late(workload, len(self.workloads))
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

    def _mean_is_within(self, fleet: Fleet) -> bool:
        few = self.workloads[:_SCREENED]
        left = self.violations * len(few)
        for workload in few:
            most_late = math.floor(left * len(workload.jobs) + _ROUNDING)
            try:
                left -= fmean(_violated(self._run(fleet, workload, most_late)))
            except TooManyLate:
                return False
        return left >= -_ROUNDING

    def _runs(self, fleet: Fleet, workloads: Sequence[Workload]) -> list[SimulationRun] | None:
        """Return a run of each workload; None if these show that a fleet does not suffice."""
        runs: list[SimulationRun] = []
        for workload in workloads:
            try:
                runs.append(self._run(fleet, workload, self._most_late(workload, len(workloads))))
            except TooManyLate:
                return None
            mean, error = _mean_and_error(runs)
            if len(runs) >= _FIRST and mean - MARGIN * error > self.violations:
                return None
        mean, error = _mean_and_error(runs)
        return runs if mean + MARGIN * error <= self.violations + _ROUNDING else None

    def _most_late(self, workload: Workload, seeds: int) -> int:
        """Return how many jobs of a run may be late.

        The limit holds for the mean and a margin. If all late jobs are in one run, the mean is its
        share by the number of seeds, as is the standard error.
        """
        share = self.violations * max(1.0, seeds / (1.0 + MARGIN))
        return math.floor(share * len(workload.jobs) + _ROUNDING)

    def _run(self, fleet: Fleet, workload: Workload, most_late: int | None = None) -> SimulationRun:
        return simulate(replace(workload, fleet=fleet), self.settings, most_late=most_late)

    def _summarise(
        self, fleet: dict[WorkerClass, int], runs: Sequence[SimulationRun]
    ) -> FleetOption:
        mean, error = _mean_and_error(runs)
        jobs = sum(len(run.workload.jobs) for run in runs)
        return FleetOption(
            fleet=fleet,
            violations=mean,
            error=error,
            sure=NormalDist().cdf((self.violations - mean) / error)
            if error
            else 1.0 - (1.0 - self.violations) ** jobs,
            busy=fmean(map(_busy, runs)),
            cost=self._cost(fleet),
        )


def plan(planner: CapacityPlanner) -> list[FleetOption]:
    """Return the least fleets of each class alone, and the best mix, which is first.

    The best mix is found by removing and exchanging workers of the least fleets. No fleet that
    differs from it by one such step is better, but another mix may be. Empty if no fleet suffices.
    """
    classes = planner.profile.classes
    alone = [found for name in classes if (found := planner.least({name: 1})) is not None]
    starts = list(alone)
    if len(classes) > 1 and (mixed := planner.least(dict.fromkeys(classes, 1))) is not None:
        starts.append(mixed)
    for start in starts:
        planner.improve(start.fleet)
    best = planner.best()
    if best is None:
        return []
    return [best, *(each for each in alone if each.fleet != best.fleet)]


def _key(fleet: Fleet) -> _Key:
    return tuple(sorted(fleet.items()))


def _violated(run: SimulationRun) -> list[bool]:
    """Return whether each job was late or did not finish."""
    outcomes = job_outcomes(run.workload.jobs, run.spans, run.finished)
    return [outcome.violated for outcome in outcomes]


def _mean_and_error(runs: Sequence[SimulationRun]) -> tuple[float, float]:
    """Return the mean share of violations and its standard error; that of a single run is 0."""
    shares = [fmean(_violated(run)) for run in runs]
    return fmean(shares), stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0


def _duration_s(run: SimulationRun) -> float:
    ends = [span.ended for span in run.spans]
    return max(ends, default=0.0) - min(job.arrival for job in run.workload.jobs)


def _busy(run: SimulationRun) -> float:
    """Return the share of the workers' time in which assignments ran."""
    available_s = _duration_s(run) * len(run.workload.workers)
    return sum(span.ended - span.started for span in run.spans) / available_s if available_s else 0
