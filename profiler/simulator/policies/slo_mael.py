"""SLO-MAEL: minimum average expected latency under deadlines (thesis, chapter 7, [1]).

Scores every mapping of a window of requests to workers: a deadline met counts one, a deadline
missed costs in proportion to the miss. Ties go to the least sum of expected latencies. Requests
stay bound to their worker; an idle worker runs the bound request with the least slack. As in
the thesis, there is no model slicing, and configurations are predefined.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Final

from profiler.simulator.policies.profile_agnostic import PredefinedConfigurations
from synergai.core.scheduling.policy import Assign, Decision, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import JobId, WorkerId

MAX_MAPPINGS: Final = 1024
"""Bound on the mappings scored per window; further jobs go into the next window."""


class SloMael:
    """Binds requests to workers on arrival by scoring all mappings, and never rebinds them."""

    rebalances = False

    def __init__(self, **configurations: str) -> None:
        self._predefined = PredefinedConfigurations(**configurations)
        self._bindings: dict[JobId, tuple[JobRecord, WorkerRecord]] = {}

    def rank(self, job: JobRecord) -> float:
        """Return the arrival time, in which order windows are filled."""
        return job.job.arrival

    def decide(self, view: View) -> list[Decision]:
        """Bind new jobs, then assign each available worker its bound job with the least slack."""
        self._prune_bindings(view)
        while window := self._window(view):
            for job, worker in self._best_mapping(view, window):
                self._bindings[job.job.id] = (job, worker)
        decisions: list[Decision] = []
        for worker in view.available():
            bound = [job for job, bound_to in self._bindings.values() if bound_to is worker]
            if bound:
                job = min(bound, key=lambda job: (job.latest_start, job.sequence))
                estimate = self._estimate(view, job, worker)
                decisions.append(Assign(job, worker, estimate, job.assignable))
        return decisions

    def _prune_bindings(self, view: View) -> None:
        """Drop bindings of jobs that no longer wait and of workers that can no longer run them."""
        self._bindings = {
            job_id: (job, worker)
            for job_id, (job, worker) in self._bindings.items()
            if job.queued
            and view.workers.get(worker.id) is worker
            and not worker.withdrawn
            and self._predefined.estimate(view, job, worker) is not None
        }

    def _window(self, view: View) -> list[tuple[JobRecord, list[WorkerRecord]]]:
        """Return the oldest unbound jobs and the workers for each, within `MAX_MAPPINGS`."""
        window: list[tuple[JobRecord, list[WorkerRecord]]] = []
        mappings = 1
        for job in view.queue.in_order():
            if job.job.id in self._bindings:
                continue
            able = [
                worker
                for worker in view.serving(job.job.engine)
                if not worker.withdrawn and self._predefined.estimate(view, job, worker) is not None
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
        for job, worker in self._bindings.values():
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
            raise RuntimeError(f"job {job.job.id} is bound to {worker.id}, which cannot run it")
        return estimate


def _score(
    jobs: Sequence[JobRecord],
    mapping: Sequence[WorkerRecord],
    seconds: dict[tuple[int, WorkerId], float],
    ready_at: dict[WorkerId, float],
) -> tuple[float, float]:
    """Return deadlines met minus proportional misses, then the negated sum of latencies."""
    met, total_latency = 0.0, 0.0
    for job, worker in zip(jobs, mapping, strict=True):
        ready_at[worker.id] += seconds[job.sequence, worker.id]
        latency_s = ready_at[worker.id] - job.job.arrival
        qos = job.job.deadline - job.job.arrival
        met += 1.0 if latency_s <= qos else -(latency_s - qos) / qos if qos > 0 else -math.inf
        total_latency += latency_s
    return met, -total_latency
