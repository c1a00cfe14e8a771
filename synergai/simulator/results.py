"""The figures of a run, and of many runs together."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.simulator.simulation import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy in one experiment with one seed.

    Attributes:
        violations: jobs that were late or refused.
        mean_wait_s: from a job's arrival until a worker turns to it.
        mean_excess_s: beyond the deadline, over all jobs, 0 for those in time.
        e2e_mean_s: from arrival to the last query, over the jobs that were run.
        e2e_p99_s: the same, 99th percentile.
        decisions: how often the core was asked.
        decision_p99_us: CPU microseconds that a decision took, 99th percentile.
        violations_at_least: the clairvoyant lower bound, where it was asked for.
    """

    experiment: str
    policy: str
    seed: int
    violations: int
    mean_wait_s: float
    mean_excess_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    decisions: int
    decision_p99_us: float
    violations_at_least: int | None = None

    def record(self) -> dict[str, Any]:
        """For JSON; what was not asked for is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def result_of(run: Run) -> Result:
    """Measure a run."""
    jobs = run.workload.jobs
    began: dict[str, float] = {}
    for span in run.spans:
        began[span.job_id] = min(span.began, began.get(span.job_id, span.began))
    excesses = [max(0.0, run.finished[j.id] - j.deadline) for j in jobs if j.id in run.finished]
    times = [run.finished[job.id] - job.arrival for job in jobs if job.id in run.finished]
    waits = [began[job.id] - job.arrival for job in jobs if job.id in began]
    late = sum(excess > 1e-9 for excess in excesses)
    return Result(
        experiment=run.workload.experiment,
        policy=run.policy,
        seed=run.workload.seed,
        violations=late + len(jobs) - len(run.finished),
        mean_wait_s=statistics.fmean(waits) if waits else 0.0,
        mean_excess_s=sum(excesses) / len(jobs),
        e2e_mean_s=statistics.fmean(times) if times else 0.0,
        e2e_p99_s=float(np.percentile(times, 99)) if times else 0.0,
        decisions=len(run.decisions_s),
        decision_p99_us=float(np.percentile(run.decisions_s, 99)) * 1e6,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Mean and standard deviation; 0 deviation for a single value."""
        known = list(values)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)
