"""The entry: admission, authentication and audit, which every call passes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.entry.access.authenticator import Authenticator
from gateway.entry.access.exposure import check_exposure
from gateway.entry.access.table import LiveTable
from gateway.entry.admission.admission import Admission
from gateway.entry.audit.log import AuditFile, AuditLog
from gateway.entry.passage.call_guard import CallGuard
from gateway.monitoring.counts import OTHER
from gateway.monitoring.families import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.monitoring.families import MetricFamily
    from gateway.parts.foundation import Foundation


@dataclass(frozen=True)
class EntryParts:
    """What calls pass; without an access table, everyone may call everything."""

    admission: Admission
    access: LiveTable | None
    call_guard: CallGuard
    agent_call_guard: CallGuard


def build_entry(base: Foundation) -> EntryParts:
    """Return the entry of a gateway."""
    config, metrics = base.config, base.metrics
    admission = Admission(config.max_requests, config.max_request_bytes, base.clock)
    metrics.add_gauge(
        "requests_in_flight", "Accepted requests that have not ended.", lambda: admission.requests
    )
    metrics.add_gauge(
        "requests_in_flight_bytes", "Bytes of these requests.", lambda: admission.bytes
    )
    metrics.add(*quota_families(admission))
    table = None if config.access is None else LiveTable(config.access)
    listed = table is not None and table.content.workers is not None
    check_exposure(config, workers_are_listed=listed)
    authenticator = None if table is None else _make_authenticator(base, table, admission)
    audit = _open_audit_log(base)
    return EntryParts(
        admission,
        table,
        call_guard=CallGuard(authenticator, admission, audit),
        agent_call_guard=CallGuard(None, admission, audit),
    )


def _make_authenticator(base: Foundation, table: LiveTable, admission: Admission) -> Authenticator:
    """Return what authenticates callers by the access table, and follow the table."""
    base.tasks.start(table.watch())
    authenticator = Authenticator(table, base.stack)
    base.metrics.add_counter(
        "access_table_rejected",
        "Changes of the access table that were not applied, because it was invalid.",
        lambda: table.rejected,
    )
    base.metrics.add_counter(
        "authentication_failures",
        "Calls with invalid credentials.",
        lambda: authenticator.failures,
    )
    table.follow(admission.use_table)
    return authenticator


def _open_audit_log(base: Foundation) -> AuditLog | None:
    """Return the audit log, if one is configured."""
    if base.config.audit_log is None:
        return None
    file = AuditFile(base.config.audit_log)
    base.stack.push_async_callback(asyncio.to_thread, file.close)
    log = AuditLog(file.append)
    base.stack.callback(log.close)
    base.metrics.add_counter(
        "audit_dropped",
        "Lines of the audit log that could not be written.",
        lambda: file.dropped,
    )
    return log


def quota_families(admission: Admission) -> Iterator[MetricFamily]:
    """Yield the metrics of quotas; tenants without a label of their own have no usage in them."""

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
