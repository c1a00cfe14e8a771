"""The gateway's Prometheus metrics.

The instruments of ``prometheus_client`` would take a lock for each count. Here, only the event loop
changes or reads the numbers; another thread renders a snapshot of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from importlib.metadata import version
from itertools import accumulate, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Info, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Shown

from gateway.monitoring.counts import (
    EngineMetrics,
    Exemplar,
    HistogramSnapshot,
    TenantCounts,
    TenantState,
    WorkMetrics,
)
from synergai.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.fleet.descriptions import EngineConflict
    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import EngineName, WorkerId
    from synergai.wire.work_transport import SentOver

    Series: TypeAlias = tuple[Sequence[str], float | HistogramSnapshot]
    Value: TypeAlias = Callable[[ConnectedWorker], float | None]

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
    return MetricFamily(GaugeMetricFamily, name, text, labels, read)


def histogram(
    name: str, text: str, read: Callable[[], Iterable[Series]], *labels: str
) -> MetricFamily:
    return MetricFamily(HistogramMetricFamily, name, text, labels, read)


class FamilyCollector(Collector):
    """Collector of metric families from a snapshot of their series."""

    def __init__(self) -> None:
        self._families: list[MetricFamily] = []
        self._snapshot: list[tuple[MetricFamily, list[Series]]] = []

    def add(self, *families: MetricFamily) -> None:
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


_STATES: Final[dict[int, str]] = {
    common_pb2.PLACED_STATE_FETCHING: "fetching",
    common_pb2.PLACED_STATE_INSTALLED: "installed",
    common_pb2.PLACED_STATE_FAILED: "failed",
    common_pb2.PLACED_STATE_CONFLICT: "conflict",
}

_COUNTERS: Final[dict[str, tuple[str, Value]]] = {
    "queries": ("Queries that the worker completed.", lambda each: each.queries_done),
    "busy_seconds": ("Time that the worker's engines computed.", lambda each: each.busy_s),
    "run_seconds": (
        "Time from dispatch to completion of completed assignments that had an estimate.",
        lambda each: each.run_s,
    ),
    "estimated_run_seconds": (
        "Estimated time of the same assignments.",
        lambda each: each.estimated_run_s,
    ),
    "estimate_error_seconds": (
        "Absolute difference of estimated and actual time, summed over the same assignments.",
        lambda each: each.estimate_error_s,
    ),
    "energy_joules": (
        "Energy of the worker's machine since its agent started.",
        lambda each: each.power.joules,
    ),
}
_GAUGES: Final[dict[str, tuple[str, Value]]] = {
    "assignments": (
        "Assignments sent to the worker that have not ended.",
        lambda each: len(each.in_flight),
    ),
    "queue_depth": (
        "Queries of these assignments that are not completed.",
        lambda each: sum(a.assignment.count - a.done for a in each.in_flight.values()),
    ),
    "power_watts": (
        "Power of the worker's machine at the last heartbeat.",
        lambda each: each.power.watts,
    ),
    "send_speed_bytes": (
        "Bytes per second of the last larger transfer to the worker.",
        lambda each: None if (sent := each.measure_link()) is None else sent.bytes_per_s,
    ),
    "receive_speed_bytes": (
        "Bytes per second of the last larger transfer from the worker, as its agent measured it.",
        lambda each: each.received_bytes_per_s or None,
    ),
}


def worker_families(
    workers: Callable[[], Iterable[ConnectedWorker]],
    paces: Callable[[], Mapping[tuple[WorkerId, EngineName], float]],
) -> Iterator[MetricFamily]:
    """Yield the families of connected workers; counters restart at a reconnection."""

    def series(value: Value) -> Callable[[], Iterator[Series]]:
        return lambda: (
            ([worker.id], number) for worker in workers() if (number := value(worker)) is not None
        )

    for new, families in ((counter, _COUNTERS), (gauge, _GAUGES)):
        for name, (text, value) in families.items():
            yield new(f"worker_{name}", text, series(value), "worker")
    yield gauge(
        "worker_pace_ratio",
        "Observed over profiled time per query; above 1, the worker is slower than profiled.",
        lambda: paces().items(),
        "worker",
        "engine",
    )
    yield gauge(
        "peer_link_speed_bytes",
        "Bytes per second of the last larger transfer of tensors from a worker to another one.",
        _links(workers, lambda link: link.bytes_per_s),
        "source",
        "worker",
    )
    yield gauge(
        "peer_link_round_trip_seconds",
        "Shortest round trip between the two workers.",
        _links(workers, lambda link: link.round_trip_s),
        "source",
        "worker",
    )
    yield gauge(
        "worker_placements",
        "Engine versions of the store that are placed on the worker, by state.",
        lambda: Counter(
            (worker.id, _STATES.get(placed.state, "waiting"))
            for worker in workers()
            for placed in worker.placed.values()
        ).items(),
        "worker",
        "state",
    )


def _links(
    workers: Callable[[], Iterable[ConnectedWorker]], value: Callable[[SentOver], float]
) -> Callable[[], Iterator[Series]]:
    def read() -> Iterator[Series]:
        connected = {worker.id: worker for worker in workers()}
        for worker in connected.values():
            for source, link in worker.peer_links.items():
                # Agents report links from any name; those of other workers are real.
                if source in connected and (number := value(link)):
                    yield [source, worker.id], number

    return read


_MAX_CONFLICTS: Final = 1000
"""Variants that are exported. Agents may make up engines."""
_MAX_LABEL: Final = 160
"""Characters of a label."""


def conflict_family(conflicts: Callable[[], Iterable[EngineConflict]]) -> MetricFamily:
    """Return the family of the engines and variants that differ from those in service."""
    return gauge(
        "worker_engine_conflicts",
        "Engines of the worker, or variants of them, that are not used, because they differ "
        "from those in service; 1 for each, with the SHA-256 of both files.",
        lambda: (
            ([text[:_MAX_LABEL] for text in conflict[:5]], 1)
            for conflict in islice(conflicts(), _MAX_CONFLICTS)
        ),
        *("worker", "engine", "variant", "digest", "in_service"),
    )
