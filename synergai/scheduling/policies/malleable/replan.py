"""The best plan for a situation in which some of what runs may be moved, and what it asks for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.scheduling.policies.malleable.planner import Planner, Share, Weights, judge
from synergai.scheduling.policies.malleable.snapshot import setup_left_s
from synergai.scheduling.policy import Give, Preempt, View

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from synergai.scheduling.policies.malleable.snapshot import Situation
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord

_EFFORT: Final = 9
"""About how many jobs are poured one after the other in a search."""
_UNKNOWN_S: Final = 1e12
"""Stands for infinity, of which two cannot be subtracted."""
_KEEP: Final = 0.95
"""An assignment goes on undisturbed if the plan leaves it at least this part of its queries."""


class Case:
    """What waits, and what of the running work may be moved, planned anew.

    Args:
        view: what the policy sees.
        situation: the jobs and workers.
        movable: running assignments that may be stopped; all of a worker's, or none.
        weights: what counts how much.
        places: the last plan's order, by sequence number.

    Attributes:
        jobs: those with something to plan.
        cost: of the plan and of what goes on besides it.
    """

    def __init__(
        self,
        view: View,
        situation: Situation,
        movable: Collection[Lease],
        weights: Weights,
        places: Mapping[int, int],
    ) -> None:
        self._view = view
        self._situation = situation
        self._movable = movable
        rows, queries, not_before, fixed = [], [], [], []
        for row, job in enumerate(situation.jobs):
            to_plan, busy_s = self._to_plan(job)
            if to_plan:
                rows.append(row)
                queries.append(float(to_plan))
                not_before.append(busy_s)
            else:
                fixed.append((row, busy_s))
        self._rows = rows
        self.jobs = [situation.jobs[row] for row in rows]
        self.cost = self._cost_of(fixed, weights)
        self._shares: list[Share] = []
        if not rows:
            return
        ready = [self._ready_s(worker) for worker in situation.workers]
        problem = situation.problem(rows, queries, ready, not_before)
        planner = Planner(problem, weights, _EFFORT)
        plan = planner.search(self._orders(places))
        self.cost += plan.cost
        self._plan = plan
        self._shares = planner.shares(plan)

    def in_order(self) -> list[JobRecord]:
        """The planned jobs in the plan's order."""
        return [self.jobs[at] for at in self._plan.order.tolist()]

    # --- the problem --------------------------------------------------------------------

    def _to_plan(self, job: JobRecord) -> tuple[int, float]:
        """How many of the job's queries are planned, and how long the others still run."""
        queries, busy_s = job.pending.total, 0.0
        for lease in job.leases.values():
            if lease.stopping or lease in self._movable:
                queries += lease.left
            else:
                worker = self._view.workers[lease.assignment.worker_id]
                busy_s = max(busy_s, self._busy_s(worker))
        return queries, busy_s

    def _busy_s(self, worker: WorkerRecord) -> float:
        """How long a worker is still busy; very long, but not for ever, if nobody knows."""
        return min(worker.free_at(self._view.now) - self._view.now, _UNKNOWN_S)

    def _ready_s(self, worker: WorkerRecord) -> float:
        if all(lease.stopping or lease in self._movable for lease in worker.leases.values()):
            return 0.0
        return self._busy_s(worker)

    def _cost_of(self, fixed: Sequence[tuple[int, float]], weights: Weights) -> float:
        """What the jobs cost that just run to their end."""
        if not fixed:
            return 0.0
        rows = np.array([row for row, _ in fixed])
        completes = np.array([busy_s for _, busy_s in fixed])
        situation = self._situation
        return float(
            judge(
                completes,
                situation.deadlines[rows],
                situation.importance[rows],
                weights,
                situation.typical_s,
            )
        )

    def _orders(self, places: Mapping[int, int]) -> list[list[int]]:
        """Where the search begins: the usual orders, and the last plan's with what is new."""
        situation = self._situation
        alone = [situation.alone_s[row] for row in self._rows]
        deadlines = [float(situation.deadlines[row]) for row in self._rows]
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

    # --- what the plan asks for ---------------------------------------------------------

    def _firsts(self) -> dict[int, Share]:
        """What comes first on each worker, by its number."""
        firsts: dict[int, Share] = {}
        for share in self._shares:
            firsts.setdefault(share.worker, share)
        return firsts

    def stops(self) -> list[Preempt]:
        """What has to be stopped, so that the plan can be followed."""
        firsts = self._firsts()
        stops: list[Preempt] = []
        for number, worker in enumerate(self._situation.workers):
            mine = [lease for lease in worker.leases.values() if lease in self._movable]
            if not mine:
                continue
            first = firsts.get(number)
            if first is None or not self._goes_on(first, mine):
                stops += [Preempt(lease) for lease in mine]
        return stops

    def _goes_on(self, first: Share, leases: Sequence[Lease]) -> bool:
        """Whether what runs on a worker can be left to itself although it was planned anew."""
        job = leases[0].job
        if self.jobs[first.job] is not job:
            return False
        if setup_left_s(leases[0], self._view.now) > 0:
            # To stop it now, only to have it run a little less, would lose what it has paid.
            return True
        left = sum(lease.left for lease in leases if lease.job is job)
        return first.queries >= _KEEP * left

    def gives(self, available: Sequence[WorkerRecord]) -> list[Give]:
        """What the plan lets begin now on the available workers."""
        firsts = self._firsts()
        wanted: dict[int, list[Share]] = {}
        for number, worker in enumerate(self._situation.workers):
            share = firsts.get(number)
            if share is not None and worker in available:
                wanted.setdefault(share.job, []).append(share)
        gives: list[Give] = []
        for number, shares in wanted.items():
            gives += self._give(self.jobs[number], self._rows[number], shares)
        return gives

    def _give(self, job: JobRecord, row: int, shares: Sequence[Share]) -> list[Give]:
        """Hand out what can be handed out of a job, in the proportions of its shares."""
        left = job.leasable
        gives: list[Give] = []
        for share in sorted(shares, key=lambda share: -share.queries):
            count = min(left, math.ceil(share.queries - 1e-6))
            estimate = self._situation.estimates[row][share.worker]
            if count > 0 and estimate is not None:
                left -= count
                worker = self._situation.workers[share.worker]
                gives.append(Give(job, worker, estimate, count))
        return gives
