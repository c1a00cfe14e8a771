"""Engines that the dictionary lacks: a few real queries of a waiting job measure them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.scheduling.estimator import Estimator
    from gateway.scheduling.events import Assignment
    from gateway.scheduling.policy import View
    from gateway.scheduling.state import JobRecord, Lease, WorkerRecord
    from synergai.domain import AssignmentId, EngineName, WorkerClass


class Probes:
    """Says what is to be measured where; at most one probe per engine and class is out."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._out: dict[AssignmentId, tuple[EngineName, WorkerClass]] = {}

    def began(self, assignment: Assignment, worker_class: WorkerClass) -> None:
        """Note that a probe is out."""
        self._out[assignment.id] = (assignment.engine, worker_class)

    def ended(self, assignment_id: AssignmentId) -> None:
        """Note that an assignment, which may have been a probe, is over."""
        self._out.pop(assignment_id, None)

    def nowhere_known(self, view: View) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Probes of engines that nobody was profiled for; the policy cannot place their jobs."""
        for engine in sorted(view.queue.engines()):
            if not any(self._estimator.estimates(engine, w) for w in view.serving(engine)):
                yield from self._wanted(view, engine, view.available())

    def unknown_here(self, view: View) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Probes for idle workers, which the policy has nothing else for."""
        idle = [worker for worker in view.available() if not worker.leases]
        for engine in sorted(view.queue.engines()):
            yield from self._wanted(view, engine, idle)

    def _wanted(
        self, view: View, engine: EngineName, workers: list[WorkerRecord]
    ) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        for worker in workers:
            if engine not in worker.engines or self._estimator.estimates(engine, worker):
                continue
            if (engine, worker.worker.worker_class) in self._out.values():
                continue
            job = next(view.queue.in_order({engine}), None)
            if job is None:
                return
            yield job, worker

    @staticmethod
    def profile(lease: Lease, worker_class: WorkerClass, now: float) -> ProfileEntry | None:
        """The profile that the ended probe gives, or None if its time is not known."""
        began = lease.first_query_at if lease.first_query_at is not None else lease.head_at
        wall_s = now - began if began is not None else 0.0
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
            label="observed",
        )
