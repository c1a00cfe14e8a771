"""Statistics over the outcomes of many runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.reports.statistics import Distribution, margin, mean
from profiler.simulator.simulation import Spread, job_outcomes, summarize
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from profiler.simulator.simulation import JobOutcome, SimulationResult, SimulationRun
    from profiler.simulator.virtual_worker import BusySpan
    from synergai.domain import EngineName, WorkerClass, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a worker class for an engine.

    Attributes:
        setup_s: time of setups, T_pre that was paid.
    """

    worker_class: WorkerClass
    engine: EngineName
    queries: int
    setup_s: float
    run_s: float

    @property
    def busy_s(self) -> float:
        """Time that the worker was not free."""
        return self.setup_s + self.run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOutcome:
    """The outcome of a run.

    Attributes:
        jobs: every job, in order of arrival.
        work: sums by worker class and engine.
        decisions_s: CPU seconds of each decision.
    """

    result: SimulationResult
    jobs: tuple[JobOutcome, ...]
    work: tuple[Work, ...]
    decisions_s: tuple[float, ...]


def outcome_of_run(run: SimulationRun) -> PolicyOutcome:
    return PolicyOutcome(
        result=summarize(run),
        jobs=job_outcomes(run.workload.jobs, run.spans, run.finished),
        work=_work(run.spans, run.workload.workers),
        decisions_s=run.decisions_s,
    )


def _work(spans: Iterable[BusySpan], classes: Mapping[WorkerId, WorkerClass]) -> tuple[Work, ...]:
    groups: dict[tuple[WorkerClass, EngineName], list[BusySpan]] = {}
    for span in spans:
        groups.setdefault((classes[span.worker_id], span.engine), []).append(span)
    return tuple(
        Work(
            worker_class=name,
            engine=engine,
            queries=sum(span.done for span in group),
            setup_s=sum(span.ready - span.started for span in group),
            run_s=sum(span.ended - span.ready for span in group),
        )
        for (name, engine), group in groups.items()
    )


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
