"""Engines that the dictionary lacks: a few real queries of a waiting job measure them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from synergai.profiles.dictionary import ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import AssignmentId, EngineName, WorkerClass, WorkerId
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.events import Assignment
    from synergai.scheduling.policy import View
    from synergai.scheduling.queue import JobQueue
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord


class Probes:
    """Says what is to be measured where; at most one probe per engine and class is out."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._lacking: dict[WorkerId, tuple[WorkerRecord, set[EngineName]]] = {}
        self._lacked: Counter[EngineName] = Counter()
        self._out: dict[AssignmentId, tuple[EngineName, WorkerClass]] = {}

    def awaited(self, queue: JobQueue) -> bool:
        """Whether anybody waits for what is to be measured."""
        return bool(self._lacked) and not self._lacked.keys().isdisjoint(queue.engines())

    def lacks(self, worker: WorkerRecord) -> set[EngineName]:
        """The worker's engines that were never profiled on its class."""
        _, engines = self._lacking.get(worker.id, (worker, set()))
        return engines

    def worker_changed(self, worker: WorkerRecord) -> None:
        """Look anew at what the worker lacks, which has joined or has other engines now."""
        self.worker_left(worker)
        lacking = {e for e in worker.engines if not self._estimator.estimates(e, worker)}
        if lacking:
            self._lacking[worker.id] = (worker, lacking)
            self._lacked.update(lacking)

    def worker_left(self, worker: WorkerRecord) -> None:
        """Forget the worker."""
        _, lacking = self._lacking.pop(worker.id, (worker, ()))
        for engine in lacking:
            self._lacked[engine] -= 1
            if not self._lacked[engine]:
                del self._lacked[engine]

    def profile_changed(self) -> None:
        """Look anew at what is lacking anywhere."""
        for worker, _ in list(self._lacking.values()):
            self.worker_changed(worker)

    def began(self, assignment: Assignment, worker_class: WorkerClass) -> None:
        """Note that a probe is out."""
        self._out[assignment.id] = (assignment.engine, worker_class)

    def ended(self, assignment_id: AssignmentId) -> None:
        """Note that an assignment, which may have been a probe, is over."""
        self._out.pop(assignment_id, None)

    def nowhere_known(self, view: View) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Probes of engines that nobody was profiled for; the policy cannot place their jobs."""
        for worker, engine in self._wanted(view):
            if not any(self._estimator.estimates(engine, one) for one in view.serving(engine)):
                yield from self._probe(view, worker, engine)

    def unknown_here(self, view: View) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        """Probes for idle workers, which the policy has nothing else for."""
        for worker, engine in self._wanted(view):
            if not worker.leases:
                yield from self._probe(view, worker, engine)

    def _wanted(self, view: View) -> list[tuple[WorkerRecord, EngineName]]:
        """Who is available and lacks what somebody waits for."""
        waited_for = view.queue.engines()
        return [
            (worker, engine)
            for worker in view.available()
            for engine in sorted(self.lacks(worker) & waited_for)
        ]

    def _probe(
        self, view: View, worker: WorkerRecord, engine: EngineName
    ) -> Iterator[tuple[JobRecord, WorkerRecord]]:
        if (engine, worker.worker.worker_class) in self._out.values():
            return
        job = next(view.queue.in_order({engine}), None)
        if job is not None and math.isfinite(worker.free_at(view.now)):
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

    @staticmethod
    def outgrown(lease: Lease, now: float) -> ProfileEntry | None:
        """A better profile, if the one that the lease rests on came from fewer queries in service.

        A probe is short, and its queries are an engine's first: it tells the order of magnitude.
        What the profiler measured is not replaced.
        """
        if lease.estimate is None or lease.job.job.with_tensors or lease.first_query_at is None:
            return None
        entry = lease.estimate.entry
        seconds = now - lease.first_query_at
        if entry.label != "observed" or lease.done <= entry.queries or seconds <= 0:
            return None
        return replace(entry, qps=lease.done / seconds, queries=lease.done)
