"""SLO-MAEL: minimum average expected latency under deadlines (thesis, chapter 7, [1]).

Every way to map the requests of a window to the workers is scored: a deadline that is met
counts one, one that is missed costs in proportion to the miss. Among the best the one with the
least sum of expected latencies is taken. A request is bound to its worker for good; an idle
worker takes the least slack of those that are bound to it. Model slicing is left out, and
configurations are predefined, as in the thesis.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Final

from synergai.scheduling.policies.predefined import Predefined
from synergai.scheduling.policy import Decision, Give, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import JobId, WorkerId
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.state import JobRecord, WorkerRecord

MAX_MAPPINGS: Final = 1024
"""A window is cut where it would have more mappings; the rest is the next window."""


class SloMael:
    """Binds requests on arrival by the score of all mappings, and never rebinds them."""

    rebalances = False

    def __init__(self, **configurations: str) -> None:
        self._predefined = Predefined(**configurations)
        self._bound: dict[JobId, tuple[JobRecord, WorkerRecord]] = {}

    def rank(self, job: JobRecord) -> float:
        """Time of arrival: the order in which windows are filled."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Bind who is new, then give every available worker its least slack."""
        self._forget(view)
        while window := self._window(view):
            for job, worker in self._best_mapping(view, window):
                self._bound[job.job.id] = (job, worker)
        decisions: list[Decision] = []
        for worker in view.available():
            mine = [job for job, bound_to in self._bound.values() if bound_to is worker]
            if mine:
                job = min(mine, key=lambda job: (job.latest_start, job.sequence))
                estimate = self._estimate(view, job, worker)
                decisions.append(Give(job, worker, estimate, job.leasable))
        return decisions

    def _forget(self, view: View) -> None:
        """Drop the bindings of jobs that wait no more, or whose worker can serve them no more."""
        self._bound = {
            job_id: (job, worker)
            for job_id, (job, worker) in self._bound.items()
            if job.lane is not None
            and view.workers.get(worker.id) is worker
            and not worker.draining
            and self._predefined.estimate(view, job, worker) is not None
        }

    def _window(self, view: View) -> list[tuple[JobRecord, list[WorkerRecord]]]:
        """The oldest unbound jobs with the workers that could run them, not too many."""
        window: list[tuple[JobRecord, list[WorkerRecord]]] = []
        mappings = 1
        for job in view.queue.in_order(view.queue.engines()):
            if job.job.id in self._bound:
                continue
            able = [
                worker
                for worker in view.serving(job.job.engine)
                if not worker.draining and self._predefined.estimate(view, job, worker) is not None
            ]
            if not able:
                continue
            mappings *= len(able)
            if window and mappings > MAX_MAPPINGS:
                break
            window.append((job, able))
        return window

    def _best_mapping(
        self, view: View, window: Sequence[tuple[JobRecord, list[WorkerRecord]]]
    ) -> list[tuple[JobRecord, WorkerRecord]]:
        ready_at = {worker.id: worker.free_at(view.now) for worker in view.workers.values()}
        for job, worker in self._bound.values():
            ready_at[worker.id] += self._seconds(view, job, worker)
        jobs = [job for job, _ in window]
        seconds = {
            (job.sequence, worker.id): self._seconds(view, job, worker)
            for job, able in window
            for worker in able
        }
        best: tuple[WorkerRecord, ...] = ()
        best_score = (-math.inf, -math.inf)
        for mapping in product(*(able for _, able in window)):
            score = _score(jobs, mapping, seconds, dict(ready_at))
            if score > best_score or not best:
                best, best_score = mapping, score
        return list(zip(jobs, best, strict=True))

    def _seconds(self, view: View, job: JobRecord, worker: WorkerRecord) -> float:
        estimate = self._estimate(view, job, worker)
        return estimate.seconds(job.pending.total, with_tensors=job.job.with_tensors)

    def _estimate(self, view: View, job: JobRecord, worker: WorkerRecord) -> Estimate:
        estimate = self._predefined.estimate(view, job, worker)
        if estimate is None:
            raise RuntimeError(f"job {job.job.id} is bound to a worker that cannot run it")
        return estimate


def _score(
    jobs: Sequence[JobRecord],
    mapping: Sequence[WorkerRecord],
    seconds: dict[tuple[int, WorkerId], float],
    ready_at: dict[WorkerId, float],
) -> tuple[float, float]:
    """Deadlines met, less what the others miss in proportion; then less latency."""
    met, latency = 0.0, 0.0
    for job, worker in zip(jobs, mapping, strict=True):
        ready_at[worker.id] += seconds[job.sequence, worker.id]
        takes = ready_at[worker.id] - job.job.arrival
        qos = job.job.deadline - job.job.arrival
        met += 1.0 if takes <= qos else -(takes - qos) / qos if qos > 0 else -math.inf
        latency += takes
    return met, -latency
