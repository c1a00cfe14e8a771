"""The gateway's Prometheus metrics."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Info, disable_created_metrics, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.monitoring.collectors import SnapshotCollector, ValueCollector
from gateway.monitoring.counts import EngineMetrics, TenantCounts
from gateway.monitoring.engine_metrics import EngineCollector
from gateway.monitoring.tenant_metrics import TenantCollector

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gateway.fleet.worker import CompletedQueries


class Metrics:
    """The gateway's metrics, in their own registry.

    Attributes:
        refused_agents: number of agents whose connection was closed for an invalid message.
        stale_reports: number of ignored reports on assignments that were not in flight.
    """

    def __init__(self) -> None:
        # Otherwise every counter adds a `_created` series.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in the library
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        build = Info("synergai_build", "Version of the gateway.", registry=self.registry)
        build.info({"version": version("synergai")})
        self._collectors: list[SnapshotCollector[Any]] = []
        self._engines: dict[str, EngineMetrics] = {}
        self._values = ValueCollector()
        self.tenants = TenantCounts()
        self.refused_agents = 0
        self.stale_reports = 0
        for snapshots in (
            EngineCollector(self._engines),
            TenantCollector(self.tenants),
            self._values,
        ):
            self.register(snapshots)
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

    def register(self, collector: SnapshotCollector[Any]) -> None:
        """Add a collector."""
        self._collectors.append(collector)
        self.registry.register(collector)

    def add_counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a counter with the value that `read` returns; it is called on the event loop."""
        self._values.add_counter(name, text, read)

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge with the value that `read` returns; it is called on the event loop."""
        self._values.add_gauge(name, text, read)

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
        if completed.variant:
            metrics.variant(completed.variant).record(completed)

    def snapshot(self) -> None:
        """Take a snapshot of all metrics; call on the event loop."""
        for collector in self._collectors:
            collector.snapshot()

    async def render(self) -> bytes:
        """Return all metrics in Prometheus' text format, rendered in a thread."""
        self.snapshot()
        return await asyncio.to_thread(generate_latest, self.registry)
