"""Collector of the metrics of requests, jobs and queries per engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.monitoring.collectors import (
    SnapshotCollector,
    add_distribution,
    counter,
    gauge,
    histogram,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from gateway.monitoring.counts import EngineMetrics, WorkState

_HISTOGRAMS: Final = {
    "queue": ("queue_seconds", "Time from arrival to the first dispatch."),
    "run": ("run_seconds", "Time from the first dispatch to completion."),
    "estimated_run": (
        "estimated_run_seconds",
        "The scheduler's estimate of the time from dispatch to completion.",
    ),
    "excess": ("deadline_excess_seconds", "Time by which deadlines were missed."),
}


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
    """Collector of the metrics of all engines."""

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
