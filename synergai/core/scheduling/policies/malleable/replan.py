"""Replanning: plans queued and preemptible work, and derives stops and assignments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.core.scheduling.policies.malleable.planner import (
    Allocation,
    Planner,
    Problem,
    Weights,
    plan_cost,
)
from synergai.core.scheduling.policy import Assign, Expect, Preempt
from synergai.core.scheduling.state.jobs import JobRecord, Lease, LeasePhase

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.view import View

_IMPORTANCE: Final = 8.0
"""Weight of a job relative to one of the next lower priority."""
_SEARCH_BUDGET: Final = 15
"""Approximate number of sequential water-filling steps per search."""
_UNKNOWN_BUSY_S: Final = 1e12
"""Finite stand-in for an unknown busy time: infinities cannot be subtracted."""
_KEEP_FRACTION: Final = 0.95
"""An assignment continues undisturbed if the plan leaves it at least this part of its queries."""


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
                per_query_s = view.per_query_s(job, worker, estimate)
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
        # Further queries of a stage come when the worker has all that are ready.
        self._goes_on = np.array(
            [
                [job.is_stage and worker.is_set_up_for(job, view.now) for worker in workers]
                for job in self.jobs
            ]
        )
        self._rates = np.array(rates)
        self._prices = np.array(prices) if view.minimizes_energy else None
        self.deadlines = np.array([job.job.deadline - view.now for job in self.jobs])
        self.importance = np.array([importance(job) for job in self.jobs])

    def problem(
        self,
        rows: Sequence[int],
        queries: Sequence[float],
        ready: Sequence[float],
        busy: Sequence[bool],
        not_before: Sequence[float],
    ) -> Problem:
        """Return the planning problem for some of the jobs.

        Args:
            ready: seconds from now until each worker is free.
            busy: whether each worker first completes what it runs, with the setup of that.
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
            saved=np.where(self._goes_on & np.array(busy), self._setup, self._saved)[at],
            not_before=np.array(not_before),
            typical_s=self.typical_s,
            prices=prices,
        )


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


class Replanner:
    """Replan with some running assignments preemptible; derive stops and assignments.

    Of a worker's leases, all or none are preemptible. `places` are positions in the previous plan,
    by job sequence number.
    """

    def __init__(
        self,
        view: View,
        snapshot: Snapshot,
        preemptible: Collection[Lease],
        weights: Weights,
        places: Mapping[int, int],
    ) -> None:
        self._view = view
        self._snapshot = snapshot
        self._preemptible = preemptible
        rows, queries, not_before, fixed = [], [], [], []
        for row, job in enumerate(snapshot.jobs):
            plannable, busy_s = self._plannable(job)
            if plannable:
                rows.append(row)
                queries.append(float(plannable))
                not_before.append(busy_s)
            else:
                fixed.append((row, busy_s))
        self._rows = rows
        self.jobs = [snapshot.jobs[row] for row in rows]
        self._busy = not_before
        self.cost = self._fixed_cost(fixed, weights)
        self._shares: list[Allocation] = []
        if not rows:
            return
        busy = [not self._is_preemptible(worker) for worker in snapshot.workers]
        ready = [self._ready_s(worker) for worker in snapshot.workers]
        problem = snapshot.problem(rows, queries, ready, busy, not_before)
        planner = Planner(problem, weights, _SEARCH_BUDGET)
        plan = planner.search(self._initial_orders(places))
        self.cost += plan.cost
        self._decide = plan
        self._shares = planner.allocations(plan)

    def in_order(self) -> list[JobRecord]:
        """Return the planned jobs in the plan's order."""
        return [self.jobs[at] for at in self._decide.order.tolist()]

    # --- problem ------------------------------------------------------------------------

    def _plannable(self, job: JobRecord) -> tuple[int, float]:
        """Return how many of the job's queries to plan, and how long the others still run."""
        queries, busy_s = job.pending.total, 0.0
        for lease in job.leases.values():
            if lease.stopping or lease in self._preemptible:
                queries += lease.remaining
            else:
                worker = self._view.workers[lease.assignment.worker_id]
                ends_at = worker.ends_at(lease, self._view.now)
                busy_s = max(busy_s, min(ends_at - self._view.now, _UNKNOWN_BUSY_S))
        return queries, busy_s

    def _is_preemptible(self, worker: WorkerRecord) -> bool:
        return any(lease in self._preemptible for lease in worker.leases.values())

    def _ready_s(self, worker: WorkerRecord) -> float:
        """Return the seconds until a worker can begin with the plan, after a long query it runs."""
        if self._is_preemptible(worker):
            head = worker.head
            return head.query_left_s(self._view.now) if head and head.runs_long_query() else 0.0
        return min(worker.free_at(self._view.now) - self._view.now, _UNKNOWN_BUSY_S)

    def _fixed_cost(self, fixed: Sequence[tuple[int, float]], weights: Weights) -> float:
        if not fixed:
            return 0.0
        rows = np.array([row for row, _ in fixed])
        completes = np.array([busy_s for _, busy_s in fixed])
        snapshot = self._snapshot
        return float(
            plan_cost(
                completes,
                snapshot.deadlines[rows],
                snapshot.importance[rows],
                weights,
                snapshot.typical_s,
            )
        )

    def _initial_orders(self, places: Mapping[int, int]) -> list[list[int]]:
        """Return the usual orders, and the previous plan's order with new jobs inserted."""
        snapshot = self._snapshot
        alone = [snapshot.alone_s[row] for row in self._rows]
        deadlines = [float(snapshot.deadlines[row]) for row in self._rows]
        numbers = list(range(len(self._rows)))
        late = [deadline < seconds for deadline, seconds in zip(deadlines, alone, strict=True)]
        orders = [
            sorted(numbers, key=lambda n: (late[n], deadlines[n] - alone[n])),
            sorted(numbers, key=lambda n: (late[n], deadlines[n])),
            sorted(numbers, key=lambda n: alone[n]),
        ]
        last = [places.get(job.sequence, -1) for job in self.jobs]
        known = sorted((n for n in numbers if last[n] >= 0), key=lambda n: last[n])
        new = sorted((n for n in numbers if last[n] < 0), key=lambda n: deadlines[n] - alone[n])
        if known and new:
            orders += [[*known[:at], *new, *known[at:]] for at in range(len(known) + 1)]
        elif known:
            orders.append(known)
        return orders

    # --- decisions ----------------------------------------------------------------------

    def _first_allocations(self) -> dict[int, Allocation]:
        first_allocations: dict[int, Allocation] = {}
        for allocation in self._shares:
            first_allocations.setdefault(allocation.worker, allocation)
        return first_allocations

    def preemptions(self) -> list[Preempt]:
        """Return the leases to stop so that the plan can be followed."""
        first_allocations = self._first_allocations()
        preemptions: list[Preempt] = []
        for number, worker in enumerate(self._snapshot.workers):
            mine = [lease for lease in worker.leases.values() if lease in self._preemptible]
            if not mine:
                continue
            first = first_allocations.get(number)
            if first is None or not self._keeps_running(first, mine):
                preemptions += [Preempt(lease) for lease in mine]
        return preemptions

    def _keeps_running(self, first: Allocation, leases: Sequence[Lease]) -> bool:
        """Return whether a worker's current leases already match the plan."""
        job = leases[0].job
        if self.jobs[first.job] is not job:
            return False
        if setup_left_s(leases[0], self._view.now) > 0:
            # Stopping it now, only to run slightly less of it, would waste the setup paid.
            return True
        left = sum(lease.remaining for lease in leases if lease.job is job)
        return first.queries >= _KEEP_FRACTION * left

    def expectations(self) -> list[Expect]:
        """Return when the plan completes its jobs, those parts included that run to their end."""
        completes = {share.job: share.completes for share in self._shares}
        return [
            Expect(job, self._view.now + max(completes.get(number, 0.0), busy_s))
            for number, (job, busy_s) in enumerate(zip(self.jobs, self._busy, strict=True))
        ]

    def assignments(self, available: Sequence[WorkerRecord]) -> list[Assign]:
        """Return what the plan starts now on the available workers."""
        first_allocations = self._first_allocations()
        wanted: dict[int, list[Allocation]] = {}
        for number, worker in enumerate(self._snapshot.workers):
            allocation = first_allocations.get(number)
            if allocation is not None and worker in available:
                wanted.setdefault(allocation.job, []).append(allocation)
        assignments: list[Assign] = []
        for number, allocations in wanted.items():
            assignments += self._assign(self.jobs[number], self._rows[number], allocations)
        return assignments

    def _assign(self, job: JobRecord, row: int, allocations: Sequence[Allocation]) -> list[Assign]:
        """Distribute the job's assignable queries in proportion to its allocations."""
        left = job.assignable
        assignments: list[Assign] = []
        for allocation in sorted(allocations, key=lambda allocation: -allocation.queries):
            count = min(left, math.ceil(allocation.queries - 1e-6))
            estimate = self._snapshot.estimates[row][allocation.worker]
            if count > 0 and estimate is not None:
                left -= count
                worker = self._snapshot.workers[allocation.worker]
                assignments.append(Assign(job, worker, estimate, count))
        return assignments
