"""The gateway's Prometheus metrics."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Info, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.monitoring.counts import EngineMetrics, TenantCounts
from gateway.monitoring.engine_metrics import engine_families, tenant_families
from gateway.monitoring.families import FamilyCollector, counter, gauge

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.monitoring.families import MetricFamily


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
