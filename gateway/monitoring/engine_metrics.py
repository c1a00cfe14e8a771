"""Metrics of requests, jobs and queries per engine, and per tenant."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gateway.monitoring.families import counter, gauge, histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.monitoring.counts import EngineMetrics, TenantCounts, TenantState, WorkMetrics
    from gateway.monitoring.families import MetricFamily, Series

_HISTOGRAMS: Final = {
    "queue": ("queue_seconds", "Time from arrival to the first dispatch."),
    "run": ("run_seconds", "Time from the first dispatch to completion."),
    "estimated_run": (
        "estimated_run_seconds",
        "The scheduler's estimate of the time from dispatch to completion.",
    ),
    "excess": ("deadline_excess_seconds", "Time by which deadlines were missed."),
}


def engine_families(engines: Mapping[str, EngineMetrics]) -> Iterator[MetricFamily]:
    """Yield the families of all engines."""

    def each(value: Callable[[EngineMetrics], float]) -> Callable[[], Iterator[Series]]:
        return lambda: (([name], value(engine)) for name, engine in engines.items())

    def with_variants(value: Callable[[EngineMetrics], float]) -> Callable[[], Iterator[Series]]:
        return lambda: (([name], value(each)) for name, each in engines.items() if each.variants)

    yield from _work_families("request", "requests", engines, attrgetter("requests"))
    yield from _work_families("job", "jobs", engines, attrgetter("jobs"))
    yield counter(
        "queries", "Completed queries of requests and jobs.", each(lambda e: e.queries), "engine"
    )
    yield counter(
        "labelled_queries",
        "Queries of jobs with a known label.",
        each(lambda e: e.labelled),
        "engine",
    )
    yield counter(
        "correct_queries",
        "Labelled queries answered correctly.",
        each(lambda e: e.correct),
        "engine",
    )
    yield counter(
        "variant_queries",
        "Completed queries, by variant of the engine.",
        lambda: (
            ([name, variant], metrics.queries)
            for name, engine in engines.items()
            for variant, metrics in engine.variants.items()
        ),
        "engine",
        "variant",
    )
    yield counter(
        "request_accuracy",
        "Sum of the accuracies of the variants that answered requests in time.",
        with_variants(lambda e: e.accuracy),
        "engine",
    )
    yield gauge(
        "effective_accuracy",
        "Mean accuracy of the answers to requests since the start; late and missing ones count "
        "as 0.",
        with_variants(lambda e: e.effective_accuracy),
        "engine",
    )
    yield counter(
        "floor_violations",
        "Requests answered by a variant below their floor.",
        with_variants(lambda e: e.floor_violations),
        "engine",
    )


def _work_families(
    kind: str,
    plural: str,
    engines: Mapping[str, EngineMetrics],
    work_of: Callable[[EngineMetrics], WorkMetrics],
) -> Iterator[MetricFamily]:
    def each(name: str) -> Callable[[], Iterator[Series]]:
        return lambda: (
            ([engine], getattr(work_of(metrics), name).read())
            for engine, metrics in engines.items()
        )

    yield counter(
        plural,
        f"Ended {plural}, by outcome.",
        lambda: (
            ([engine, outcome], count)
            for engine, metrics in engines.items()
            for outcome, count in work_of(metrics).outcomes.items()
        ),
        "engine",
        "outcome",
    )
    yield counter(
        f"{kind}_deadline_violations",
        f"Missed deadlines of {plural}: late, expired, rejected or failed.",
        lambda: (([engine], work_of(metrics).violations) for engine, metrics in engines.items()),
        "engine",
    )
    for name, (suffix, text) in _HISTOGRAMS.items():
        yield histogram(f"{kind}_{suffix}", f"{plural.capitalize()}: {text}", each(name), "engine")


def tenant_families(tenants: TenantCounts) -> Iterator[MetricFamily]:
    """Yield the families of requests and jobs per tenant."""

    def each(counts: Callable[[TenantState], dict[str, int]]) -> Callable[[], Iterator[Series]]:
        return lambda: (
            ([tenant, outcome], count)
            for tenant, state in tenants.by_label.items()
            for outcome, count in counts(state).items()
        )

    labels = ("tenant", "outcome")
    yield counter(
        "tenant_requests",
        "Ended requests by tenant and outcome.",
        each(lambda state: state.requests),
        *labels,
    )
    yield counter(
        "tenant_jobs", "Ended jobs by tenant and outcome.", each(lambda state: state.jobs), *labels
    )
