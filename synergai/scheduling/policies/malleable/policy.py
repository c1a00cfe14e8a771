"""Ours: jobs are split over workers, stopped between two queries and resumed anywhere.

A job is q independent queries. At each event the waiting jobs are planned (``planning``) on the
workers that are free now or soon; what the plan lets begin now is given out, and all else is
left to the next event. When a job arrives, or a worker is about to idle, everything that runs
is planned as well, as if it could be moved; if that saves enough, what is in the way is stopped.
"""

from __future__ import annotations

import heapq
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.scheduling.policies.malleable.planner import MAX_WORKERS, Weights
from synergai.scheduling.policies.malleable.replan import Case
from synergai.scheduling.policies.malleable.snapshot import Situation
from synergai.scheduling.policy import Decision, Give, View

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord

MAX_JOBS: Final = 5
"""How many waiting jobs are planned at once; those behind them wait for a later event."""


class Malleable:
    """Minimises late jobs first, their total excess second, mean completion third.

    Args:
        gain: what stopping has to save, as a part of a late job.
        least_s: assignments that will be over sooner than this are not stopped.
        weights: those of the criteria; see ``planning.Weights``.

    Raises:
        InvalidInput: an option is unknown or not a number.
    """

    rebalances = True

    def __init__(self, gain: str = "0.1", least_s: str = "2", **weights: str) -> None:
        known = {field.name for field in fields(Weights)}
        if unknown := set(weights) - known:
            raise InvalidInput(
                f"policy 'malleable' has no option {min(unknown)!r}; there are: gain, least_s, "
                + ", ".join(sorted(known))
            )
        try:
            self._gain, self._least_s = float(gain), float(least_s)
            self._weights = Weights(**{name: float(value) for name, value in weights.items()})
        except ValueError as error:
            raise InvalidInput(f"the options of policy 'malleable' are numbers: {error}") from None
        self._newest = -1
        self._order: dict[int, int] = {}

    def rank(self, job: JobRecord) -> float:
        """Latest start on the fastest worker."""
        return job.latest_start

    def decide(self, view: View) -> Sequence[Decision]:
        """Give out what the best plan lets begin now, or stop what is in its way."""
        available = view.available()
        waiting = list(islice(view.queue.in_order(view.queue.engines(), view.now), MAX_JOBS))
        newest = max((job.sequence for job in waiting), default=-1)
        arrived = newest > self._newest
        self._newest = max(self._newest, newest)
        idle = [w for w in available if not w.leases and w.idle_since == view.now]
        if not (waiting and available) and not arrived and not idle:
            return []
        if available and waiting and waiting[0].pending.total == 1:
            return self._give_single(view, waiting, available)
        workers = _nearby(view, waiting, available)
        movable: set[Lease] = set()
        if arrived or idle:
            # Without news, what was just given out is left alone: it would be moved for ever.
            given_by = view.now - (0.0 if arrived else self._least_s)
            movable = self._movable(workers, view.now, given_by)
        if not waiting and not movable:
            return []
        return self._plan(view, waiting, available, workers, movable)

    def _give_single(
        self, view: View, waiting: Sequence[JobRecord], available: list[WorkerRecord]
    ) -> list[Decision]:
        """Requests cannot be split: each goes where it is soonest done."""
        decisions: list[Decision] = []
        for job in waiting:
            candidates = view.candidates(job, available)
            if job.pending.total > 1 or not candidates:
                break
            decisions.append(Give(job, candidates[0].worker, candidates[0].estimate, 1))
            available.remove(candidates[0].worker)
        return decisions

    def _movable(self, workers: Sequence[WorkerRecord], now: float, given_by: float) -> set[Lease]:
        """What may be stopped: all leases of workers that have enough left to do."""
        movable: set[Lease] = set()
        for worker in workers:
            leases = worker.leases.values()
            if any(lease.estimate is None or lease.given_at > given_by for lease in leases):
                continue
            if worker.free_at(now) - now > self._least_s:
                movable.update(lease for lease in leases if not lease.stopping)
        return movable

    def _plan(
        self,
        view: View,
        waiting: Sequence[JobRecord],
        available: Sequence[WorkerRecord],
        workers: Sequence[WorkerRecord],
        movable: Collection[Lease],
    ) -> Sequence[Decision]:
        leases = [lease for worker in workers for lease in worker.leases.values()]
        running = [lease.job for lease in leases if lease.stopping or lease in movable]
        situation = Situation(view, list(dict.fromkeys([*waiting, *running])), workers)
        gentle = self._case(view, situation, ())
        if movable:
            bold = self._case(view, situation, movable)
            if bold.cost < gentle.cost - self._gain and (stops := bold.stops()):
                stopped = {stop.lease.assignment.worker_id for stop in stops}
                free = [w for w in workers if w.id in stopped or w in available]
                return [*stops, *bold.gives(free)]
        if gentle.jobs:
            self._order = {job.sequence: place for place, job in enumerate(gentle.in_order())}
        return gentle.gives(available)

    def _case(self, view: View, situation: Situation, movable: Collection[Lease]) -> Case:
        return Case(view, situation, movable, self._weights, self._order)


def _nearby(
    view: View, waiting: Sequence[JobRecord], available: Sequence[WorkerRecord]
) -> list[WorkerRecord]:
    """The workers that are planned for: all of a small fleet, the most promising of a large one.

    Those are the best of the available ones and the ones that are free soonest; if nobody is
    available, also those whose work could best wait.
    """
    fleet = view.workers.values()
    if len(fleet) <= MAX_WORKERS:
        return [worker for worker in fleet if not worker.draining]
    if not waiting:
        return list(available[:1])
    first = waiting[0]
    if available:
        chosen = [c.worker for c in view.candidates(first, available)[: MAX_WORKERS - 2]]
    else:
        busy = [w for w in view.serving(first.job.engine) if w.leases and not w.draining]
        chosen = heapq.nlargest(MAX_WORKERS - 2, busy, key=_slack)
    soonest = view.soonest(MAX_WORKERS, first.job.engine)
    return list(dict.fromkeys([*chosen, *soonest]))[:MAX_WORKERS]


def _slack(worker: WorkerRecord) -> float:
    """How long the worker's first job could be set aside."""
    head = next(iter(worker.leases.values()))
    return head.job.job.deadline - worker.head_ends_at
