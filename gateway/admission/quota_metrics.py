"""Metrics of the quotas, for a bounded number of tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.monitoring.counts import OTHER
from gateway.monitoring.families import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.admission.admission import Admission
    from gateway.monitoring.families import Family


def quota_families(admission: Admission) -> Iterator[Family]:
    """Yield the families; tenants without a label of their own have no usage in them."""

    def figures() -> Iterator[tuple[list[str], float, float]]:
        now = admission.now()
        for usage in admission.usages():
            if (label := admission.labels.of(usage.tenant)) != OTHER:
                for name, used, limit in usage.figures(now):
                    yield [label, name], used, limit

    labels = ("tenant", "quota")
    yield counter(
        "quota_rejections", "Refusals by tenant and quota.", admission.rejections.items, *labels
    )
    yield gauge(
        "quota_used",
        "What a tenant uses of a quota.",
        lambda: ((each, used) for each, used, _ in figures()),
        *labels,
    )
    yield gauge(
        "quota_limit",
        "Limit of a quota.",
        lambda: ((each, limit) for each, _, limit in figures()),
        *labels,
    )
