"""Jobs, their inputs and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.dispatch.job_routes import JobRoutes
from gateway.jobs.own_inputs import OwnInputs, Retention
from gateway.jobs.results import JobResults
from gateway.jobs.submitted import SubmittedJobs
from gateway.jobs.uploads import InputUploads

if TYPE_CHECKING:
    from gateway.parts.entry import EntryParts
    from gateway.parts.fleet import FleetParts
    from gateway.parts.foundation import Foundation
    from gateway.parts.storage import StorageParts


@dataclass(frozen=True)
class JobParts:
    """Jobs of a gateway; `restored` of them had not ended when it started."""

    submitted: SubmittedJobs
    uploads: InputUploads
    results: JobResults
    restored: int


async def build_jobs(
    base: Foundation, storage: StorageParts, entry: EntryParts, fleet: FleetParts
) -> JobParts:
    """Return the jobs of a gateway, and continue those that have not ended."""
    config, stack, tasks, metrics = base.config, base.stack, base.tasks, base.metrics
    journal, data = storage.journal, storage.data
    routes = JobRoutes(fleet.dispatcher, fleet.versions.routes, fleet.model_control.load)
    stack.push_async_callback(routes.close)
    budget_bytes = config.data_budget or None
    uploads = InputUploads(
        data,
        journal,
        entry.admission,
        budget_bytes=budget_bytes,
        memory_bytes=config.max_request_bytes // 2,
    )
    own_inputs = OwnInputs(data, uploads, journal)
    submitted = SubmittedJobs(
        fleet.dispatcher,
        fleet.versions,
        journal,
        entry.admission,
        metrics,
        base.clock,
        own_inputs=own_inputs,
        routes=routes,
    )
    stack.push_async_callback(submitted.close)
    metrics.add_gauge(
        "paused_jobs",
        "Unfinished jobs that wait for room on the journal's disk.",
        lambda: len(submitted.pauses),
    )
    metrics.add_counter(
        "uploaded_bytes", "Bytes of inputs that clients stored.", lambda: uploads.stored_bytes
    )
    metrics.add_counter(
        "inputs_answered",
        "Inputs of jobs over uploads with a response.",
        lambda: own_inputs.answered,
    )
    metrics.add_counter(
        "inputs_failed", "Inputs of jobs over uploads that failed.", lambda: own_inputs.failed
    )
    restored = await submitted.restore()
    tasks.start(submitted.pauses.follow_store())
    retention = Retention(
        data,
        journal,
        base.clock.unix_now,
        results_kept_s=config.results_kept_s,
        budget_bytes=budget_bytes,
    )
    tasks.start(retention.run())
    tasks.start(fleet.profiles.watch(fleet.tell_changes))
    tasks.start(routes.run())
    results = JobResults(submitted, data, journal.confirm)
    return JobParts(submitted, uploads, results, restored)
