"""Metrics of requests and jobs per tenant, for a bounded number of tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.monitoring.collectors import SnapshotCollector, counter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

MAX_TENANTS: Final = 100
"""Number of tenants with series of their own: clients choose the names, and any number of them."""
DEFAULT: Final = "default"
"""Label of requests and jobs that name no tenant."""
OTHER: Final = "other"
"""Label of all tenants beyond `MAX_TENANTS`."""


class TenantLabels:
    """Labels of tenants, of which there are a bounded number.

    Args:
        limit: number of tenants with labels of their own, the first ones seen.
    """

    def __init__(self, limit: int = MAX_TENANTS) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, tenant: str) -> str:
        """Return the label of a tenant; an empty tenant is the default one."""
        label = tenant or DEFAULT
        if label not in self._known:
            if label == OTHER or len(self._known) >= self._limit:
                return OTHER
            self._known.add(label)
        return label


class TenantState(NamedTuple):
    """Counts of one tenant, by outcome."""

    requests: dict[str, int]
    jobs: dict[str, int]


class TenantMetrics(SnapshotCollector[dict[str, TenantState]]):
    """Counters and collector of requests and jobs per tenant.

    Args:
        limit: number of tenants with series of their own, the first ones seen.
    """

    def __init__(self, limit: int = MAX_TENANTS) -> None:
        super().__init__()
        self._labels = TenantLabels(limit)
        self._tenants: dict[str, TenantState] = {}

    def count_request(self, tenant: str, outcome: str) -> None:
        """Count an ended request; an empty tenant is the default one."""
        counts = self._of(tenant).requests
        counts[outcome] = counts.get(outcome, 0) + 1

    def count_job(self, tenant: str, outcome: str) -> None:
        """Count an ended job; an empty tenant is the default one."""
        counts = self._of(tenant).jobs
        counts[outcome] = counts.get(outcome, 0) + 1

    def _of(self, tenant: str) -> TenantState:
        label = self._labels.of(tenant)
        state = self._tenants.get(label)
        if state is None:
            state = self._tenants[label] = TenantState({}, {})
        return state

    def read(self) -> dict[str, TenantState]:
        """Return a snapshot of all tenants."""
        return {
            tenant: TenantState(state.requests.copy(), state.jobs.copy())
            for tenant, state in self._tenants.items()
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
