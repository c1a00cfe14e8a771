"""The metrics that show the state of a gateway's components."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.monitoring.counts import OTHER
from gateway.monitoring.families import counter, gauge
from gateway.monitoring.worker_metrics import conflict_family, worker_families

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.admission.admission import Admission
    from gateway.app import App
    from gateway.monitoring.families import MetricFamily


def register_metrics(app: App) -> None:
    """Add the components' metrics to the gateway's."""
    metrics = app.metrics
    metrics.add_gauge(
        "queue_depth", "Jobs and requests that wait for a worker.", lambda: app.dispatcher.queued
    )
    metrics.add_gauge(
        "requests_in_flight",
        "Accepted requests that have not ended.",
        lambda: app.admission.requests,
    )
    metrics.add_gauge(
        "requests_in_flight_bytes", "Bytes of these requests.", lambda: app.admission.bytes
    )
    metrics.add_gauge(
        "journal_writable",
        "Whether the journal's disk has room for new jobs.",
        lambda: app.journal.accepting,
    )
    metrics.add_gauge(
        "paused_jobs",
        "Unfinished jobs that wait for room on the journal's disk.",
        lambda: len(app.jobs.pauses),
    )
    metrics.add_gauge(
        "stored_upload_bytes",
        "Bytes of uploads on disk.",
        lambda: app.data.bytes_in("uploads"),
    )
    metrics.add_gauge(
        "stored_result_bytes",
        "Bytes of results of jobs over uploads on disk.",
        lambda: app.data.bytes_in("results"),
    )
    metrics.add_counter(
        "uploaded_bytes",
        "Bytes of inputs that clients stored.",
        lambda: app.input_uploads.stored_bytes,
    )
    metrics.add_counter(
        "inputs_answered",
        "Inputs of jobs over uploads with a response.",
        lambda: app.own_inputs.answered,
    )
    metrics.add_counter(
        "inputs_failed", "Inputs of jobs over uploads that failed.", lambda: app.own_inputs.failed
    )
    metrics.add_gauge("workers", "Connected workers.", lambda: app.dispatcher.worker_count)
    metrics.add_gauge(
        "workers_ejected",
        "Workers that get no work for a while, as they made no progress.",
        lambda: sum(map(app.dispatcher.is_ejected, app.dispatcher.workers())),
    )
    metrics.add_counter(
        "ejections",
        "Times that a worker was ejected because it made no progress.",
        lambda: app.dispatcher.ejections,
    )
    metrics.add_counter(
        "variant_crashes",
        "Times that a variant crashed its engine host, and paused on the worker.",
        lambda: app.dispatcher.variant_crashes,
    )
    preloads = app.dispatcher.preloads
    metrics.add_counter(
        "preloads", "Sessions loaded before they were needed.", lambda: preloads.loads
    )
    metrics.add_counter("preload_seconds", "Time that these loads took.", lambda: preloads.total_s)
    metrics.add_gauge(
        "preload_unused_seconds",
        "Time of the preloads that no query has used so far.",
        lambda: preloads.unused_s,
    )
    metrics.add(
        *quota_families(app.admission),
        *worker_families(app.dispatcher.workers, app.dispatcher.paces),
        conflict_family(lambda: app.catalogue.conflicts),
    )
    metrics.add_gauge("store_bytes", "Size of the store of engines.", lambda: app.store.used_bytes)
    metrics.add_gauge(
        "store_available", "Whether the store of engines can be used.", lambda: not app.store.fault
    )
    metrics.add_gauge(
        "unread_response_bytes",
        "Bytes of responses that clients have not read yet.",
        lambda: app.unread.bytes,
    )


def quota_families(admission: Admission) -> Iterator[MetricFamily]:
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
