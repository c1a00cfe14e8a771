"""Statistics over the outcomes of many runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from profiler.reports.statistics import Distribution, margin, mean
from profiler.simulator.results import Spread
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from profiler.reports.evaluation.outcomes import PolicyOutcome, Work
    from profiler.simulator.outcomes import JobOutcome
    from profiler.simulator.results import SimulationResult
    from synergai.domain import EngineName, WorkerClass


class Study:
    """Outcomes by policy and experiment.

    Attributes:
        policies: in order of their first outcome.
        engines: engines of any job, sorted.
        classes: worker classes that did any work, by the queries per second that they did.
    """

    def __init__(self, outcomes: Iterable[PolicyOutcome]) -> None:
        self._table: dict[tuple[str, str], list[PolicyOutcome]] = {}
        known = list(outcomes)
        if not known:
            raise InvalidInput("there is no run to report on")
        results = [outcome.result for outcome in known]
        for outcome, result in zip(known, results, strict=True):
            self._table.setdefault((result.policy, result.experiment), []).append(outcome)
        self.policies = list(dict.fromkeys(result.policy for result in results))
        self.experiments = list(dict.fromkeys(result.experiment for result in results))
        self.seeds = len({result.seed for result in results})
        self.engines = sorted({job.engine for outcome in known for job in outcome.jobs})
        rates: dict[WorkerClass, tuple[int, float]] = {}
        for outcome in known:
            for work in outcome.work:
                queries, run_s = rates.get(work.worker_class, (0, 0.0))
                rates[work.worker_class] = (queries + work.queries, run_s + work.run_s)
        self.classes = sorted(
            rates, key=lambda name: rates[name][0] / (rates[name][1] or math.inf), reverse=True
        )

    def of(self, policy: str, experiment: str) -> list[PolicyOutcome]:
        """Return the outcomes of a policy in an experiment, by seed; possibly none."""
        return self._table.get((policy, experiment), [])

    def jobs_per_run(self, experiment: str) -> float:
        """Return the mean number of jobs of a run."""
        runs = [len(each.jobs) for policy in self.policies for each in self.of(policy, experiment)]
        return mean(runs) or 0.0

    def spread(
        self, policy: str, experiment: str, metric: Callable[[SimulationResult], float]
    ) -> Spread | None:
        """Return mean and standard deviation over seeds; None without outcomes."""
        outcomes = self.of(policy, experiment)
        return Spread.of(metric(each.result) for each in outcomes) if outcomes else None

    def margin(
        self, policy: str, experiment: str, metric: Callable[[SimulationResult], float]
    ) -> float:
        """Return half the width of the 95 % confidence interval of the mean over seeds."""
        return margin([metric(each.result) for each in self.of(policy, experiment)])

    def mean(
        self, policy: str, experiment: str, metric: Callable[[SimulationResult], float]
    ) -> float | None:
        """Return the mean over seeds; None without outcomes."""
        spread = self.spread(policy, experiment, metric)
        return None if spread is None else spread.mean

    def total(self, policy: str, metric: Callable[[SimulationResult], float]) -> float:
        """Return the sum over experiments of the means over seeds."""
        means = [self.mean(policy, experiment, metric) for experiment in self.experiments]
        return sum(each for each in means if each is not None)

    def distribution(
        self, policy: str, experiment: str, value: Callable[[JobOutcome], float | None]
    ) -> Distribution | None:
        """Return the distribution of a value over the jobs of all seeds; None without any."""
        values = [
            each
            for outcome in self.of(policy, experiment)
            for job in outcome.jobs
            if (each := value(job)) is not None
        ]
        return Distribution.of(values) if values else None

    def violated_share(self, policy: str, experiment: str, engine: EngineName) -> float | None:
        """Return the share of an engine's jobs that were violated; None without such jobs."""
        return mean(
            float(job.violated)
            for outcome in self.of(policy, experiment)
            for job in outcome.jobs
            if job.engine == engine
        )

    def work(self, policy: str, experiment: str) -> list[Work]:
        """Return the work of all runs."""
        return [work for outcome in self.of(policy, experiment) for work in outcome.work]

    def class_share(self, policy: str, experiment: str, worker_class: WorkerClass) -> float | None:
        """Return a class's share of the busy time of all workers; None without any."""
        work = self.work(policy, experiment)
        total = sum(each.busy_s for each in work)
        part = sum(each.busy_s for each in work if each.worker_class == worker_class)
        return part / total if total else None

    def setup_share(self, policy: str, experiment: str) -> float | None:
        """Return the share of T_pre in the busy time of all workers; None without any."""
        work = self.work(policy, experiment)
        total = sum(each.busy_s for each in work)
        return sum(each.setup_s for each in work) / total if total else None

    def decisions_us(self, policy: str) -> Distribution | None:
        """Return the distribution of CPU microseconds per decision; None without decisions."""
        values = [
            each * 1e6
            for experiment in self.experiments
            for outcome in self.of(policy, experiment)
            for each in outcome.decisions_s
        ]
        return Distribution.of(values) if values else None

    def scheduling_ms_per_job(self, policy: str) -> float | None:
        """Return the CPU milliseconds of all decisions per job; None without outcomes."""
        outcomes = [o for experiment in self.experiments for o in self.of(policy, experiment)]
        jobs = sum(len(outcome.jobs) for outcome in outcomes)
        return sum(sum(outcome.decisions_s) for outcome in outcomes) * 1e3 / jobs if jobs else None

    def joules_per_query(self, policy: str) -> float | None:
        """Return the energy of busy workers per query; None if some power is not known."""
        work = [work for experiment in self.experiments for work in self.work(policy, experiment)]
        energies = [each.joules for each in work if each.joules is not None]
        queries = sum(each.queries for each in work)
        return sum(energies) / queries if queries and len(energies) == len(work) else None
