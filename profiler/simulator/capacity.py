"""Least fleets that keep violations within a limit at a given demand, found by simulation.

A fleet suffices if the mean over seeds and a margin of its standard errors are within the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final, TypeAlias

from profiler.simulator.simulation import job_outcomes, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from profiler.simulator.simulation import SimulationRun
    from profiler.simulator.workload import Workload
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.domain import WorkerClass

MAX_WORKERS: Final = 256
MARGIN: Final = 1.6
"""Standard errors by which the mean violations of a fleet are below the limit."""
_ROUNDING: Final = 1e-9

Fleet: TypeAlias = "Mapping[WorkerClass, int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOption:
    """A fleet that suffices; shares are 0 to 1.

    Attributes:
        fleet: workers by class.
        violations: share of the jobs that were late or rejected, mean over seeds.
        error: standard error of that mean; 0 of a single seed.
        busy: share of the workers' time in which they worked.
    """

    fleet: Fleet
    violations: float
    error: float
    busy: float


@dataclass(slots=True, kw_only=True)
class CapacityPlanner:
    """Finds fleets that suffice.

    Attributes:
        workloads: the demand, one per seed.
        violations: largest share of violated jobs.
        max_workers: most workers of a class to consider.
        on_fleet: called before a fleet is simulated.
    """

    workloads: Sequence[Workload]
    settings: SchedulingSettings
    violations: float
    max_workers: int = MAX_WORKERS
    on_fleet: Callable[[Fleet], object] = lambda _: None

    def plan(self) -> list[FleetOption]:
        """Return the least fleet of each class alone, and of all classes in equal numbers.

        Where no fleet up to the most workers suffices, there is none.
        """
        classes = self.workloads[0].profile.classes
        shapes = [[name] for name in classes]
        if len(classes) > 1:
            shapes.append(list(classes))
        found = map(self.least, shapes)
        return [option for option in found if option is not None]

    def least(self, classes: Sequence[WorkerClass]) -> FleetOption | None:
        """Return the least fleet that suffices with as many workers of each of the classes."""
        too_few, count = 0, 1
        while (option := self.sufficient(dict.fromkeys(classes, count))) is None:
            if count == self.max_workers:
                return None
            too_few, count = count, min(self.max_workers, 2 * count)
        while count - too_few > 1:
            middle = (count + too_few) // 2
            fewer = self.sufficient(dict.fromkeys(classes, middle))
            if fewer is None:
                too_few = middle
            else:
                option, count = fewer, middle
        return option

    def sufficient(self, fleet: Fleet) -> FleetOption | None:
        """Return how a fleet performs; None if it does not suffice."""
        self.on_fleet(fleet)
        shares, busy = [], []
        for workload in self.workloads:
            run = simulate(replace(workload, fleet=fleet), self.settings)
            shares.append(_violated(run))
            busy.append(_busy(run))
            # Later seeds cannot make up for it.
            if sum(shares) > self.violations * len(self.workloads) + _ROUNDING:
                return None
        mean = fmean(shares)
        error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 0.0
        if mean + MARGIN * error > self.violations + _ROUNDING:
            return None
        return FleetOption(fleet=fleet, violations=mean, error=error, busy=fmean(busy))


def _violated(run: SimulationRun) -> float:
    """Return the share of jobs that were late or did not finish."""
    outcomes = job_outcomes(run.workload.jobs, run.spans, run.finished)
    return fmean(outcome.violated for outcome in outcomes)


def _busy(run: SimulationRun) -> float:
    """Return the share of the workers' time in which assignments ran."""
    ends = [span.ended for span in run.spans]
    duration_s = max(ends, default=0.0) - min(job.arrival for job in run.workload.jobs)
    available_s = duration_s * len(run.workload.workers)
    return sum(span.ended - span.started for span in run.spans) / available_s if available_s else 0
