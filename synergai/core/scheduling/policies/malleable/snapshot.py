"""Jobs and workers as arrays, for the planner."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.core.scheduling.policies.malleable.planner import Problem
from synergai.core.scheduling.state.jobs import LeasePhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.scheduling.policies.malleable.planner import Floats
    from synergai.core.scheduling.policy import View
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName

_IMPORTANCE: Final = 8.0
"""Weight of a job relative to one of the next lower priority."""


class Snapshot:
    """Jobs and workers at one instant, with the cost of each job on each worker.

    Attributes:
        estimates: by job and worker; None where the job cannot run.
        alone_s: least time in which a single worker could run each job's remaining queries.
        deadlines: seconds from now, shape (jobs,).
        importance: weight of each job, shape (jobs,).
        typical_s: mean time of the jobs on their best workers.
    """

    def __init__(
        self, view: View, jobs: Sequence[JobRecord], workers: Sequence[WorkerRecord]
    ) -> None:
        self.now = view.now
        self._contention = view.contention
        self.workers = workers
        self.jobs: list[JobRecord] = []
        self.estimates: list[list[Estimate | None]] = []
        setup: list[list[float]] = []
        saved: list[list[float]] = []
        rates: list[list[float]] = []
        prices: list[list[float]] = []
        self.alone_s: list[float] = []
        for job in jobs:
            estimates = [view.best_estimate(job, worker) for worker in workers]
            if not any(estimates):
                continue
            self.jobs.append(job)
            self.estimates.append(estimates)
            best_s = math.inf
            setup_row, saved_row, rates_row = [], [], []
            for worker, estimate in zip(workers, estimates, strict=True):
                if estimate is None:
                    setup_row.append(0.0)
                    saved_row.append(0.0)
                    rates_row.append(0.0)
                    continue
                setup_s, saved_s = _setup(job, worker, estimate, view)
                per_query_s = view.alone_query_s(job, worker, estimate)
                setup_row.append(setup_s)
                saved_row.append(saved_s)
                rates_row.append(1.0 / per_query_s)
                best_s = min(best_s, setup_s + job.remaining * per_query_s)
            setup.append(setup_row)
            saved.append(saved_row)
            rates.append(rates_row)
            self.alone_s.append(best_s)
            if view.minimizes_energy:
                prices.append([0.0 if e is None else e.entry.watts for e in estimates])
        self.typical_s = max(sum(self.alone_s) / max(1, len(self.jobs)), 1e-9)
        self._setup = np.array(setup)
        self._saved = np.array(saved)
        self._rates = np.array(rates)
        self._prices = np.array(prices) if view.minimizes_energy else None
        self.deadlines = np.array([job.job.deadline - view.now for job in self.jobs])
        self.importance = np.array([importance(job) for job in self.jobs])

    def problem(
        self,
        rows: Sequence[int],
        queries: Sequence[float],
        ready: Sequence[float],
        not_before: Sequence[float],
    ) -> Problem:
        """Return the planning problem for some of the jobs.

        Args:
            ready: seconds from now until each worker is free.
            not_before: seconds from now until the unplanned part of each job ends.
        """
        at = np.array(rows)
        prices = self._prices
        if prices is not None:
            # Normalised to a mean of 1, so that energy weighs as much as time.
            prices = prices[at] / max(float(prices.mean()), 1e-9)
        return Problem(
            queries=np.array(queries, dtype=np.float64),
            deadlines=self.deadlines[at],
            importance=self.importance[at],
            ready=np.array(ready),
            setup=self._setup[at],
            rates=self._rates[at],
            saved=self._saved[at],
            not_before=np.array(not_before),
            typical_s=self.typical_s,
            prices=prices,
        )

    def mates(self) -> list[list[int]]:
        """Return the other workers of each worker's machine, by number."""
        numbers = {worker.index: number for number, worker in enumerate(self.workers)}
        return [
            [numbers[index] for index in worker.mates if index in numbers]
            for worker in self.workers
        ]

    def slowdowns(self, engines: Sequence[EngineName]) -> Floats:
        """Return the factor by which another engine slows each one down, shape (jobs, jobs)."""
        shared = next(worker for worker in self.workers if worker.mates)
        found = [
            [self._contention.slowdown(shared, engine, (other,)) for other in engines]
            for engine in engines
        ]
        return np.array(found)


def _setup(
    job: JobRecord, worker: WorkerRecord, estimate: Estimate, view: View
) -> tuple[float, float]:
    """Return the setup of the job on the worker, and the part saved if the job continues there."""
    if not worker.is_set_up_for(job, view.now):
        return view.setup_s(job, worker, estimate), 0.0
    to_pay_s = 0.0 if worker.head is None else setup_left_s(worker.head, view.now)
    setup_s = max(estimate.setup_s, to_pay_s)
    return setup_s, setup_s - to_pay_s


def setup_left_s(lease: Lease, now: float) -> float:
    """Return the expected remaining setup of a worker's head lease."""
    if lease.phase is not LeasePhase.SETUP or lease.head_at is None or lease.done:
        return 0.0
    return max(0.0, lease.assignment.setup_s - (now - lease.head_at))


def importance(job: JobRecord) -> float:
    """Return the weight of a job."""
    return _IMPORTANCE ** (job.job.priority - job.over_share)
