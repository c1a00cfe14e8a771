"""The gateway's Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.monitoring.engine_metrics import EngineCollector, EngineMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.fleet.worker import CompletedQueries


class Metrics:
    """The gateway's instruments, in their own registry."""

    def __init__(self) -> None:
        # Otherwise every counter adds a `_created` series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in the library
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        self._stale_reports = Counter(
            "synergai_stale_reports",
            "Reports under assignments that were not in flight",
            registry=self.registry,
        )
        self.refused_agents = Counter(
            "synergai_refused_agents",
            "Streams of agents that were ended for what they sent",
            registry=self.registry,
        )
        self._engines: dict[str, EngineMetrics] = {}
        self.registry.register(EngineCollector(self._engines))

    def engine(self, name: str) -> EngineMetrics:
        """Return the metrics of an engine, which must exist to keep the label set bounded."""
        metrics = self._engines.get(name)
        if metrics is None:
            metrics = self._engines[name] = EngineMetrics()
        return metrics

    def on_completed(self, completed: CompletedQueries) -> None:
        """Count newly completed queries."""
        metrics = self.engine(completed.engine)
        metrics.queries += completed.queries
        metrics.statistics.record_compute(
            completed.queries, completed.compute_s, completed.at, completed.batch
        )

    def on_stale_report(self) -> None:
        """Count a report on an assignment that is not in flight."""
        self._stale_reports.inc()

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register a gauge that calls `read` at each scrape, from another thread."""
        Gauge(f"synergai_{name}", text, registry=self.registry).set_function(read)
