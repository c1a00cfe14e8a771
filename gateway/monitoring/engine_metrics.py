"""Metrics of requests, jobs and queries per engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.monitoring.collectors import (
    Buckets,
    Histogram,
    SnapshotCollector,
    add_distribution,
    counter,
    gauge,
    histogram,
)
from gateway.monitoring.statistics import EngineStatistics
from synergai.domain import MAX_VARIANTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from gateway.fleet.worker import CompletedQueries
    from gateway.monitoring.collectors import Distribution

_COUNTED: Final = ("ok", "late", "expired", "rejected", "failed")
"""Outcomes of requests that count for the effective accuracy: not those of the client's doing."""
_OTHERS: Final = "other"
REQUEST_BUCKETS: Final = Buckets(
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
JOB_BUCKETS: Final = Buckets(
    *(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0),
)
_HISTOGRAMS: Final = {
    "queue": ("queue_seconds", "Time from arrival to the first dispatch."),
    "run": ("run_seconds", "Time from the first dispatch to completion."),
    "estimated_run": (
        "estimated_run_seconds",
        "The scheduler's estimate of the time from dispatch to completion.",
    ),
    "excess": ("deadline_excess_seconds", "Time by which deadlines were missed."),
}


class WorkMetrics:
    """Metrics of an engine's requests, or of its jobs.

    Attributes:
        outcomes: number of ended requests or jobs by outcome.
        violations: number of missed deadlines.
        queue: time from arrival to the first dispatch.
        run: time from the first dispatch to completion.
        estimated_run: the scheduler's estimate of it.
        excess: time by which deadlines were missed.
    """

    __slots__ = ("outcomes", "violations", *_HISTOGRAMS)

    def __init__(self, buckets: Buckets) -> None:
        self.outcomes: dict[str, int] = {}
        self.violations = 0
        self.queue = Histogram(buckets)
        self.run = Histogram(buckets)
        self.estimated_run = Histogram(buckets)
        self.excess = Histogram(buckets)

    def count(self, outcome: str) -> None:
        """Count an ended request or job."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def observe_run(self, estimated_s: float | None, actual_s: float) -> None:
        """Record the time from dispatch to completion and its estimate, if there was one."""
        self.run.observe(actual_s)
        if estimated_s:
            self.estimated_run.observe(estimated_s)

    def count_violation(self, excess_s: float) -> None:
        """Count a missed deadline and record by how much it was missed."""
        self.violations += 1
        self.excess.observe(excess_s)

    def read(self) -> WorkState:
        """Return a snapshot."""
        distributions = {name: getattr(self, name).read() for name in _HISTOGRAMS}
        return WorkState(self.outcomes.copy(), self.violations, distributions)


class WorkState(NamedTuple):
    """Snapshot of `WorkMetrics`."""

    outcomes: dict[str, int]
    violations: int
    distributions: dict[str, Distribution]


class VariantMetrics:
    """Metrics of one variant of an engine.

    Attributes:
        queries: number of completed queries of requests and jobs.
        statistics: figures for the protocol's ModelStatistics.
    """

    __slots__ = ("queries", "statistics")

    def __init__(self) -> None:
        self.queries = 0
        self.statistics = EngineStatistics()

    def record(self, completed: CompletedQueries) -> None:
        """Count newly completed queries."""
        self.queries += completed.queries
        self.statistics.record_compute(
            completed.queries, completed.compute_s, completed.at, completed.batch
        )


class EngineMetrics:
    """Metrics of one engine.

    Attributes:
        requests: metrics of its requests.
        jobs: metrics of its jobs.
        queries: number of completed queries, of both.
        labelled: queries of ended jobs with a known label.
        correct: number of these that were answered correctly.
        statistics: figures for the protocol's ModelStatistics.
        variants: metrics of its variants by name; empty if it has none.
        accuracy: sum of the accuracies of the variants that answered requests in time.
        floor_violations: number of requests answered by a variant below their floor.
    """

    __slots__ = (
        "accuracy",
        "correct",
        "floor_violations",
        "jobs",
        "labelled",
        "queries",
        "requests",
        "statistics",
        "variants",
    )

    def __init__(self) -> None:
        self.requests = WorkMetrics(REQUEST_BUCKETS)
        self.jobs = WorkMetrics(JOB_BUCKETS)
        self.queries = self.labelled = self.correct = 0
        self.statistics = EngineStatistics()
        self.variants: dict[str, VariantMetrics] = {}
        self.accuracy = 0.0
        self.floor_violations = 0

    def variant(self, name: str) -> VariantMetrics:
        """Return the metrics of a variant; beyond `MAX_VARIANTS`, those of all others together."""
        metrics = self.variants.get(name)
        if metrics is None:
            if len(self.variants) >= MAX_VARIANTS:
                name = _OTHERS
            metrics = self.variants.setdefault(name, VariantMetrics())
        return metrics

    def count_answer(self, accuracy: float, floor: float, *, late: bool) -> None:
        """Count the answer of a variant to a request.

        Args:
            accuracy: accuracy of the variant.
            floor: lowest accuracy that the request allows.
            late: whether it came after the request's deadline.
        """
        if not late:
            self.accuracy += accuracy
        if accuracy < floor:
            self.floor_violations += 1

    @property
    def effective_accuracy(self) -> float:
        """Mean accuracy of the answers to requests; those that were late or missing count as 0."""
        outcomes = self.requests.outcomes
        counted = sum(outcomes.get(outcome, 0) for outcome in _COUNTED)
        return self.accuracy / counted if counted else 0.0


class EngineState(NamedTuple):
    """Snapshot of `EngineMetrics`."""

    name: str
    request: WorkState
    job: WorkState
    queries: int
    labelled: int
    correct: int
    variants: dict[str, int]
    accuracy: float
    effective_accuracy: float
    floor_violations: int


class EngineCollector(SnapshotCollector[list[EngineState]]):
    """Collector of the metrics of all engines.

    Args:
        engines: metrics by engine name; may grow.
    """

    def __init__(self, engines: Mapping[str, EngineMetrics]) -> None:
        super().__init__()
        self._engines = engines

    def read(self) -> list[EngineState]:
        """Return a snapshot of all engines."""
        return [
            EngineState(
                name,
                engine.requests.read(),
                engine.jobs.read(),
                engine.queries,
                engine.labelled,
                engine.correct,
                {variant: each.queries for variant, each in engine.variants.items()},
                engine.accuracy,
                engine.effective_accuracy,
                engine.floor_violations,
            )
            for name, engine in self._engines.items()
        ]

    def families(self, state: list[EngineState]) -> Iterator[Metric]:
        """Yield the families of requests, jobs and queries."""
        yield from _work_families("request", "requests", [(e.name, e.request) for e in state])
        yield from _work_families("job", "jobs", [(e.name, e.job) for e in state])
        queries = counter("queries", "Completed queries of requests and jobs.", "engine")
        labelled = counter("labelled_queries", "Queries of jobs with a known label.", "engine")
        correct = counter("correct_queries", "Labelled queries answered correctly.", "engine")
        for engine in state:
            queries.add_metric([engine.name], engine.queries)
            labelled.add_metric([engine.name], engine.labelled)
            correct.add_metric([engine.name], engine.correct)
        yield from (queries, labelled, correct)
        yield from _variant_families([engine for engine in state if engine.variants])


def _variant_families(engines: list[EngineState]) -> Iterator[Metric]:
    """Yield the families of engines with variants."""
    queries = counter(
        "variant_queries", "Completed queries, by variant of the engine.", "engine", "variant"
    )
    accuracy = counter(
        "request_accuracy",
        "Sum of the accuracies of the variants that answered requests in time.",
        "engine",
    )
    effective = gauge(
        "effective_accuracy",
        "Mean accuracy of the answers to requests since the start; late and missing ones count "
        "as 0.",
        "engine",
    )
    violations = counter(
        "floor_violations", "Requests answered by a variant below their floor.", "engine"
    )
    for engine in engines:
        for variant, count in engine.variants.items():
            queries.add_metric([engine.name, variant], count)
        accuracy.add_metric([engine.name], engine.accuracy)
        effective.add_metric([engine.name], engine.effective_accuracy)
        violations.add_metric([engine.name], engine.floor_violations)
    yield from (queries, accuracy, effective, violations)


def _work_families(
    kind: str, plural: str, engines: list[tuple[str, WorkState]]
) -> Iterator[Metric]:
    ended = counter(plural, f"Ended {plural}, by outcome.", "engine", "outcome")
    violations = counter(
        f"{kind}_deadline_violations",
        f"Missed deadlines of {plural}: late, expired, rejected or failed.",
        "engine",
    )
    for engine, work in engines:
        for outcome, count in work.outcomes.items():
            ended.add_metric([engine, outcome], count)
        violations.add_metric([engine], work.violations)
    yield from (ended, violations)
    for name, (suffix, text) in _HISTOGRAMS.items():
        family = histogram(f"{kind}_{suffix}", f"{plural.capitalize()}: {text}", "engine")
        for engine, work in engines:
            add_distribution(family, [engine], work.distributions[name])
        yield family
