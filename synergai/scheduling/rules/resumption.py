"""Resumption: a job that yielded to a request continues where it ran.

Without this, its rest would compete for any worker, and under `rr` and `srr` wait for its turn in a
rotation that it has already had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.scheduling.policy import Assign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.domain import JobId
    from synergai.scheduling.rules.kernel import State
    from synergai.scheduling.state.records import JobRecord, Lease, WorkerRecord


class Resumption:
    """The interrupted jobs by worker, each until it is assigned or removed."""

    def __init__(self, state: State) -> None:
        self._state = state
        state.forget_job.append(self.discard)
        state.forget_worker.append(self._forget_worker)
        self._by_worker: dict[int, dict[JobId, Lease]] = {}
        self.jobs: dict[JobId, int] = {}

    def remember(self, lease: Lease) -> None:
        """Let the job of `lease` resume on the worker where it was stopped for a request.

        Policies that move running work decide themselves where it resumes.
        """
        worker = self._state.fleet.workers.get(lease.assignment.worker_id)
        if worker is None or self._state.policy.rebalances:
            return
        self.discard(lease.job)
        self._by_worker.setdefault(worker.index, {})[lease.job.job.id] = lease
        self.jobs[lease.job.job.id] = worker.index

    def discard(self, job: JobRecord) -> None:
        """Forget a job, because it was assigned or removed; do nothing if it is not interrupted."""
        index = self.jobs.pop(job.job.id, None)
        if index is None:
            return
        jobs = self._by_worker[index]
        del jobs[job.job.id]
        if not jobs:
            del self._by_worker[index]

    def _forget_worker(self, worker: WorkerRecord) -> None:
        for job_id in self._by_worker.pop(worker.index, ()):
            del self.jobs[job_id]

    def decisions(self) -> Iterator[Assign]:
        """Yield the assignments of interrupted jobs to the workers that are available again.

        A job that a waiting one of higher priority precedes is left to the policy. The caller
        executes each decision before it asks for the next.
        """
        for worker in self._state.available():
            for lease in list(self._by_worker.get(worker.index, {}).values()):
                if worker.available_at > self._state.now:
                    break
                job = lease.job
                self.discard(job)
                engine = lease.assignment.engine
                if not job.assignable or engine not in worker.engines:
                    continue
                first = next(self._state.queue.in_order(worker.engines), job)
                if first.job.priority > job.job.priority:
                    continue
                estimate = self._state.estimate(engine, worker, lease.assignment.configuration)
                if estimate is not None and (job.limit is None or job.limit.allows(estimate)):
                    yield Assign(job, worker, estimate, job.assignable)
