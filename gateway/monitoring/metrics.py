"""The gateway's Prometheus metrics.

The instruments of ``prometheus_client`` would take a lock for each count. Here, only the event loop
changes or reads the numbers; another thread renders a snapshot of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from importlib.metadata import version
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Info, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Shown

from gateway.monitoring.counts import EngineMetrics, HistogramSnapshot, TenantCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.core import Metric

    from gateway.monitoring.counts import Exemplar, TenantState, WorkMetrics

    Series: TypeAlias = tuple[Sequence[str], float | HistogramSnapshot]


PREFIX: Final = "synergai_"


class MetricFamily(NamedTuple):
    """A metric family."""

    new: Callable[..., Any]
    name: str
    text: str
    labels: tuple[str, ...]
    read: Callable[[], Iterable[Series]]

    def render(self, series: Iterable[Series]) -> Metric:
        """Return the family with some series, in the library's form."""
        family = self.new(PREFIX + self.name, self.text, labels=self.labels)
        for labels, value in series:
            if isinstance(value, HistogramSnapshot):
                buckets = zip(value.buckets.labels, accumulate(value.counts), strict=True)
                shown = [
                    (*bucket, _exemplar(value.exemplars.get(number)))
                    for number, bucket in enumerate(buckets)
                ]
                family.add_metric(labels, shown, value.total)
            else:
                family.add_metric(labels, value)
        return family  # type: ignore[no-any-return]  # the library's families share no `add_metric`


def _exemplar(found: Exemplar | None) -> Shown | None:
    return found and Shown({"trace_id": found.trace_id}, found.seconds, found.unix)


def counter(
    name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str
) -> MetricFamily:
    """Return a counter family; its series get the suffix ``_total``."""
    return MetricFamily(CounterMetricFamily, name, text, labels, read)


def gauge(name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str) -> MetricFamily:
    """Return a gauge family."""
    return MetricFamily(GaugeMetricFamily, name, text, labels, read)


def histogram(
    name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str
) -> MetricFamily:
    """Return a histogram family; its values are distributions."""
    return MetricFamily(HistogramMetricFamily, name, text, labels, read)


class FamilyCollector(Collector):
    """Collector of metric families from a snapshot of their series."""

    def __init__(self) -> None:
        self._families: list[MetricFamily] = []
        self._snapshot: list[tuple[MetricFamily, list[Series]]] = []

    def add(self, *families: MetricFamily) -> None:
        """Add families."""
        self._families.extend(families)

    def snapshot(self) -> None:
        """Read all series for the next `collect`; call on the event loop."""
        self._snapshot = [(family, list(family.read())) for family in self._families]

    def collect(self) -> Iterator[Metric]:
        """Yield the families of the last snapshot; safe in any thread."""
        for family, series in self._snapshot:
            yield family.render(series)


class Metrics:
    """The gateway's metrics, in their own registry.

    Attributes:
        engines: by name; engines must exist, to keep the label set bounded.
    """

    def __init__(self) -> None:
        # Otherwise every counter adds a `_created` series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in the library
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        build = Info("synergai_build", "Version of the gateway.", registry=self.registry)
        build.info({"version": version("synergai")})
        self.engines = defaultdict[str, EngineMetrics](EngineMetrics)
        self._families = FamilyCollector()
        self.registry.register(self._families)
        self.tenants = TenantCounts()
        self.refused_agents = 0
        self.stale_reports = 0
        self.add(*engine_families(self.engines), *tenant_families(self.tenants))
        self.add_counter(
            "refused_agents",
            "Agents whose connection was closed for an invalid message.",
            lambda: self.refused_agents,
        )
        self.add_counter(
            "stale_reports",
            "Ignored reports on assignments that were not in flight.",
            lambda: self.stale_reports,
        )

    def add(self, *families: MetricFamily) -> None:
        """Add metric families."""
        self._families.add(*families)

    def add_counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a counter with the value that `read` returns; it is called on the event loop."""
        self.add(counter(name, text, lambda: [((), read())]))

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge with the value that `read` returns; it is called on the event loop."""
        self.add(gauge(name, text, lambda: [((), read())]))

    def snapshot(self) -> None:
        """Take a snapshot of all metrics; call on the event loop."""
        self._families.snapshot()

    async def render(self, accepted: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type, rendered in a thread.

        They are in Prometheus' text format, or in that of OpenMetrics, which has exemplars, if the
        header ``Accept`` asks for it.
        """
        self.snapshot()
        write, content_type = choose_encoder(accepted)
        return await asyncio.to_thread(write, self.registry), content_type


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
