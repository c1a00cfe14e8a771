"""Metrics of the quotas, for a bounded number of tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.monitoring.collectors import SnapshotCollector, counter, gauge
from gateway.monitoring.counts import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from gateway.admission.quotas import TenantQuotas


class QuotaState(NamedTuple):
    """Rejections by label and quota; label, quota, usage and limit of the tenants in use."""

    rejections: dict[tuple[str, str], int]
    figures: list[tuple[str, str, float, float]]


class QuotaCollector(SnapshotCollector[QuotaState]):
    """Collector of rejections, usage and limits."""

    def __init__(self, quotas: TenantQuotas) -> None:
        super().__init__()
        self._quotas = quotas

    def read(self) -> QuotaState:
        """Return a snapshot; tenants without a label of their own have no usage in it."""
        quotas = self._quotas
        now = quotas.now()
        figures = [
            (label, *figure)
            for usage in quotas.usages()
            if (label := quotas.labels.of(usage.tenant)) != OTHER
            for figure in usage.figures(now)
        ]
        return QuotaState(quotas.rejections.copy(), figures)

    def families(self, state: QuotaState) -> Iterator[Metric]:
        """Yield the families."""
        rejections = counter("quota_rejections", "Refusals by tenant and quota.", "tenant", "quota")
        used = gauge("quota_used", "What a tenant uses of a quota.", "tenant", "quota")
        limits = gauge("quota_limit", "Limit of a quota.", "tenant", "quota")
        for labels, count in state.rejections.items():
            rejections.add_metric(labels, count)
        for tenant, quota, usage, limit in state.figures:
            used.add_metric([tenant, quota], usage)
            limits.add_metric([tenant, quota], limit)
        yield from (rejections, used, limits)
