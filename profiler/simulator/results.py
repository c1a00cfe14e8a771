"""Figures of a run, and statistics over runs."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from profiler.simulator.simulation import job_outcomes
from profiler.simulator.simulator_settings import WATTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from profiler.simulator.simulation import JobOutcome, SimulationRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """One policy in one experiment with one seed.

    Attributes:
        mean_wait_s: from a job's arrival until a worker starts it.
        mean_excess_s: time beyond the deadline over all jobs, 0 for those in time.
        excess_p99_s: 99th percentile of the same.
        e2e_mean_s: from arrival to the last query, over finished jobs.
        e2e_p99_s: 99th percentile of the same.
        decision_p99_us: CPU microseconds per decision, 99th percentile.
        violations_at_least: lower bound on violations, if requested.
        useless_loads_s: worker time of those that no job used.
        useless_joules: energy of these, at each machine's usual power; see `WATTS`.
    """

    experiment: str
    policy: str
    seed: int
    jobs: int
    violations: int
    mean_wait_s: float
    mean_excess_s: float
    excess_p99_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    decisions: int
    decision_p99_us: float
    violations_at_least: int | None = None
    loads: int | None = None
    useless_loads_s: float | None = None
    useless_joules: float | None = None

    def record(self) -> dict[str, Any]:
        """Return the JSON form, without figures that were not requested."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def summarize(run: SimulationRun) -> SimulationResult:
    """Compute the figures of a run."""
    workload = run.workload
    jobs = job_outcomes(workload.jobs, run.spans, run.finished)
    result = summarize_jobs(workload.experiment, run.policy, workload.seed, jobs, run.decisions_s)
    if not run.loads:
        return result
    useless = [load for load in run.loads if not load.used]
    classes = workload.workers
    return replace(
        result,
        loads=len(run.loads),
        useless_loads_s=sum(load.spent_s for load in useless),
        useless_joules=sum(
            load.spent_s * WATTS.get(classes[load.worker_id], 0.0) for load in useless
        ),
    )


def summarize_jobs(
    experiment: str,
    policy: str,
    seed: int,
    jobs: Sequence[JobOutcome],
    decisions_s: Sequence[float],
) -> SimulationResult:
    """Compute the figures of a run from its jobs and decisions; there is at least one of each."""
    times = [job.end_to_end_s for job in jobs if job.end_to_end_s is not None]
    waits = [job.wait_s for job in jobs if job.wait_s is not None]
    return SimulationResult(
        experiment=experiment,
        policy=policy,
        seed=seed,
        jobs=len(jobs),
        violations=sum(job.violated for job in jobs),
        mean_wait_s=statistics.fmean(waits) if waits else 0.0,
        mean_excess_s=sum(job.excess_s for job in jobs) / len(jobs),
        excess_p99_s=float(np.percentile([job.excess_s for job in jobs], 99)),
        e2e_mean_s=statistics.fmean(times) if times else 0.0,
        e2e_p99_s=float(np.percentile(times, 99)) if times else 0.0,
        decisions=len(decisions_s),
        decision_p99_us=float(np.percentile(decisions_s, 99)) * 1e6,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of a figure over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of `values`; 0 deviation for a single value."""
        known = list(values)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)
