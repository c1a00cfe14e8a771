"""Collector of the metrics of requests and jobs per tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.monitoring.collectors import SnapshotCollector, counter
from gateway.monitoring.counts import TenantState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from gateway.monitoring.counts import TenantCounts


class TenantCollector(SnapshotCollector[dict[str, TenantState]]):
    """Collector of the counters of requests and jobs per tenant."""

    def __init__(self, tenants: TenantCounts) -> None:
        super().__init__()
        self._tenants = tenants

    def read(self) -> dict[str, TenantState]:
        """Return a snapshot of all tenants."""
        return {
            tenant: TenantState(state.requests.copy(), state.jobs.copy())
            for tenant, state in self._tenants.by_label.items()
        }

    def families(self, state: dict[str, TenantState]) -> Iterator[Metric]:
        """Yield the counters of requests and jobs."""
        requests = counter(
            "tenant_requests", "Ended requests by tenant and outcome.", "tenant", "outcome"
        )
        jobs = counter("tenant_jobs", "Ended jobs by tenant and outcome.", "tenant", "outcome")
        for tenant, counts in state.items():
            for outcome, count in counts.requests.items():
                requests.add_metric([tenant, outcome], count)
            for outcome, count in counts.jobs.items():
                jobs.add_metric([tenant, outcome], count)
        yield from (requests, jobs)
