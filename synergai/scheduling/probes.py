"""Probes: measuring unprofiled engines with a few real queries of a waiting job."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from synergai.profiles.dictionary import OBSERVED, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import AssignmentId, EngineName, WorkerClass, WorkerId
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import Assignment
    from synergai.scheduling.policy import View
    from synergai.scheduling.queue import JobQueue
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord


class Probes:
    """Selects what to probe where; at most one probe per engine and worker class is in flight."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._unprofiled: dict[WorkerId, tuple[WorkerRecord, set[EngineName]]] = {}
        self._unprofiled_counts: Counter[EngineName] = Counter()
        self._in_flight: dict[AssignmentId, tuple[EngineName, WorkerClass]] = {}

    def are_needed(self, queue: JobQueue) -> bool:
        """Return whether a queued job's engine is unprofiled on some worker."""
        unprofiled = self._unprofiled_counts.keys()
        return bool(unprofiled) and not unprofiled.isdisjoint(queue.engines())

    def unprofiled(self, worker: WorkerRecord) -> set[EngineName]:
        """Return the worker's engines that are not profiled on its class."""
        _, engines = self._unprofiled.get(worker.id, (worker, set()))
        return engines

    def update_worker(self, worker: WorkerRecord) -> None:
        """Recompute the unprofiled engines of a worker that joined or changed its engines."""
        self.remove_worker(worker)
        unprofiled = {e for e in worker.engines if not self._estimator.estimates(e, worker)}
        if unprofiled:
            self._unprofiled[worker.id] = (worker, unprofiled)
            self._unprofiled_counts.update(unprofiled)

    def remove_worker(self, worker: WorkerRecord) -> None:
        """Forget the worker."""
        _, unprofiled = self._unprofiled.pop(worker.id, (worker, ()))
        for engine in unprofiled:
            self._unprofiled_counts[engine] -= 1
            if not self._unprofiled_counts[engine]:
                del self._unprofiled_counts[engine]

    def refresh(self) -> None:
        """Recompute the unprofiled engines of all workers after a profile change."""
        for worker, _ in list(self._unprofiled.values()):
            self.update_worker(worker)

    def is_in_flight(self, engine: EngineName, worker_class: WorkerClass) -> bool:
        """Return whether the engine is being probed on the class."""
        return (engine, worker_class) in self._in_flight.values()

    def started(self, assignment: Assignment, worker_class: WorkerClass) -> None:
        """Record that a probe is in flight."""
        self._in_flight[assignment.id] = (assignment.engine, worker_class)

    def finished(self, assignment_id: AssignmentId) -> None:
        """Record that an assignment, possibly a probe, has ended."""
        self._in_flight.pop(assignment_id, None)

    def for_unprofiled_engines(self, view: View) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Yield probes of engines without any profile, whose jobs the policy cannot place."""
        for worker, engine in self._missing_pairs(view):
            if not any(self._estimator.estimates(engine, one) for one in view.serving(engine)):
                yield from self._candidates(view, worker, engine)

    def for_idle_workers(self, view: View) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Yield probes for workers that the policy left idle."""
        for worker, engine in self._missing_pairs(view):
            if not worker.leases:
                yield from self._candidates(view, worker, engine)

    def _missing_pairs(self, view: View) -> list[tuple[WorkerRecord, EngineName]]:
        """Return available workers with an unprofiled engine that some job waits for."""
        waited_for = view.queue.engines()
        return [
            (worker, engine)
            for worker in view.available()
            for engine in sorted(self.unprofiled(worker) & waited_for)
        ]

    def _candidates(
        self, view: View, worker: WorkerRecord, engine: EngineName
    ) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        if self.is_in_flight(engine, worker.worker.worker_class):
            return
        job = next(view.queue.in_order({engine}), None)
        if job is not None and math.isfinite(worker.free_at(view.now)):
            yield job, worker

    @staticmethod
    def measured_profile(
        lease: Lease, worker_class: WorkerClass, now: float
    ) -> ProfileEntry | None:
        """Return the profile measured by a finished probe; None if its duration is unknown."""
        started = lease.first_query_at if lease.first_query_at is not None else lease.head_at
        wall_s = now - started if started is not None else 0.0
        seconds = lease.compute_s or wall_s
        if seconds <= 0:
            return None
        return ProfileEntry(
            engine=lease.assignment.engine,
            worker_class=worker_class,
            configuration=lease.assignment.configuration,
            qps=lease.done / seconds,
            model_load_s=lease.setup_s,
            queries=lease.done,
            label=OBSERVED,
        )

    @staticmethod
    def refined_profile(lease: Lease, now: float) -> ProfileEntry | None:
        """Return a better profile if the lease's own rests on fewer queries in service.

        A probe is short and includes an engine's first queries, so it gives only the order of
        magnitude. Entries measured by the profiler are never replaced.
        """
        if lease.estimate is None or lease.job.job.with_tensors or lease.first_query_at is None:
            return None
        entry = lease.estimate.entry
        seconds = now - lease.first_query_at
        if entry.label != OBSERVED or lease.done <= entry.queries or seconds <= 0:
            return None
        return replace(entry, qps=lease.done / seconds, queries=lease.done)
