"""Malleable policy: jobs are split over workers, stopped between queries and resumed anywhere.

A job consists of independent queries. On each event the waiting jobs are planned on the workers
that are available now or soon (see ``planner``). Only the part of the plan that can start now is
dispatched; the rest is replanned on the next event. When a job arrives or a worker goes idle, a
second plan also includes the running work; if it saves enough, assignments in its way are
stopped.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.policies.malleable.planner import MAX_WORKERS, Weights
from synergai.core.scheduling.policies.malleable.replan import Replanner, Snapshot, setup_left_s
from synergai.core.scheduling.policy import Assign, Decision
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from synergai.core.scheduling.state.jobs import JobRecord, Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.view import Candidate, View

MAX_JOBS: Final = 5
"""Number of waiting jobs planned at once; jobs behind them wait for a later event."""
MAX_SINGLES: Final = 64
"""Waiting jobs of one query that are considered at once."""
LONG_QUEUE: Final = 64
"""Waiting jobs beyond which those that move up are not planned before a worker is available."""

_STOPPED_S: Final = 0.1
"""Assignments that end sooner than this are not stopped for a job that arrives.

It is some ten times of what a stop costs: telling the worker, and planning again.
"""
_EXTENDED: Final = 0.1
"""Part of the required saving that suffices to use what was just added to the fleet, or to relieve
a worker that turned out to be slow.

Splitting a job without a deadline over twice the workers saves half of what is required otherwise.
"""


class Malleable:
    """Minimises late jobs first, their total excess second, mean completion third.

    Args:
        gain: required saving of a preempting plan, in units of one late job.
        least_s: assignments that end sooner than this, or began later, are not stopped to use a
            worker that goes idle.
        weights: criteria weights; see ``planner.Weights``.
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
        """Return the latest start on the fastest worker."""
        return job.latest_start

    def decide(self, view: View) -> Sequence[Decision]:
        """Start what the best plan begins with now, or stop the assignments in its way."""
        available = view.available()
        waiting: list[JobRecord] = []
        arrived = False
        if view.queue.size:
            waiting = list(islice(view.queue.in_order(now=view.now), MAX_JOBS))
            newest = max([job.sequence for job in waiting])
            if newest > self._newest:
                arrived = True
                self._newest = newest
            if view.queue.size > LONG_QUEUE:
                # In a long queue, a job that only moved up is no reason to plan again.
                self._newest = view.queue.newest
            if available and waiting[0].pending.total == 1:
                decisions = self._assign_singles(view, available)
                if decisions is not None:
                    return decisions
                if not (waiting := _longer_jobs(view)):
                    return []
        slowed = view.slowed_at == view.now
        idle = False
        for worker in available:
            idle |= not worker.leases and (slowed or worker.idle_since == view.now)
        if not (waiting and available) and not arrived and not idle:
            return []
        if not waiting and all(not worker.leases for worker in view.workers.values()):
            return []  # fast path: the fleet is idle
        workers = _relevant_workers(view, waiting, available)
        preemptible: set[Lease] = set()
        if arrived or idle:
            # Recent assignments are left alone, or they would move forever, unless a job arrived or
            # the fleet was extended: a running job was perhaps just stopped to probe it.
            extended = view.extended_at == view.now
            assigned_by = view.now - (0.0 if arrived or extended else self._least_s)
            least_s = min(_STOPPED_S, self._least_s) if arrived else self._least_s
            preemptible = self._preemptible(workers, view, assigned_by, least_s)
        if not preemptible and (not waiting or (not available and _are_singles(waiting))):
            return []
        return self._decide(view, waiting, available, workers, preemptible)

    def _assign_singles(self, view: View, available: list[WorkerRecord]) -> list[Decision] | None:
        """Assign leading jobs of one query, each to the worker that completes it soonest.

        Jobs that are in time there come first, as many of them as possible. A late one that another
        worker could complete in time waits for it, until its latest start. None if no available
        worker can take any of them.
        """
        in_time: list[tuple[JobRecord, Candidate]] = []
        late: list[tuple[JobRecord, Candidate]] = []
        # The workers that have a job without deadline, behind which others of these would come.
        supplied: set[int] = set()
        level = None
        taken = False
        for job in islice(view.queue.in_order(now=view.now), MAX_SINGLES):
            if job.pending.total > 1 or (in_time and job.level != level):
                break
            candidates = view.takers(job, available)
            if not candidates:
                continue  # it waits for a load or another worker, which holds up no other
            taken = True
            if candidates[0].completes_at <= job.job.deadline:
                level = job.level
                in_time.append((job, candidates[0]))
                if job.job.deadline == math.inf:
                    supplied.add(candidates[0].worker.index)
                    if len(supplied) == len(available):
                        break
            elif job.latest_start < view.now:
                late.append((job, candidates[0]))
        if not taken:
            return None
        decisions: list[Decision] = []
        for job, candidate in _most_in_time(in_time, view) if in_time else late:
            if candidate.worker in available:
                available.remove(candidate.worker)
                decisions.append(Assign(job, candidate.worker, candidate.estimate, 1))
        return decisions

    def _preemptible(
        self, workers: Sequence[WorkerRecord], view: View, assigned_by: float, least_s: float
    ) -> set[Lease]:
        """Return the leases that may be stopped: all leases of workers with enough work left."""
        now = view.now
        preemptible: set[Lease] = set()
        for worker in workers:
            leases = worker.leases.values()
            if any(lease.estimate is None for lease in leases):
                continue
            if any(lease.assigned_at > assigned_by and not lease.is_slow for lease in leases):
                continue
            if any(_keeps(lease.job, worker, workers, view) for lease in leases):
                continue
            if worker.free_at(now) - now > least_s and not _runs_last_query(worker, now):
                preemptible.update(lease for lease in leases if not lease.stopping)
        return preemptible

    def _decide(
        self,
        view: View,
        waiting: Sequence[JobRecord],
        available: Sequence[WorkerRecord],
        workers: Sequence[WorkerRecord],
        preemptible: Collection[Lease],
    ) -> Sequence[Decision]:
        leases = [
            lease for worker in workers for lease in worker.leases.values() if not lease.job.removed
        ]
        running = [lease.job for lease in leases if lease.stopping or lease in preemptible]
        snapshot = Snapshot(view, list(dict.fromkeys([*waiting, *running])), workers)
        keeping = self._replan(view, snapshot, ())
        if preemptible:
            preempting = self._replan(view, snapshot, preemptible)
            gain = self._gain
            if view.extended_at == view.now or any(lease.is_slow for lease in preemptible):
                gain *= _EXTENDED
            if preempting.cost < keeping.cost - gain and (stops := preempting.preemptions()):
                stopped = {stop.lease.assignment.worker_id for stop in stops}
                free = [w for w in workers if w.id in stopped or w in available]
                return [*stops, *preempting.expectations(), *preempting.assignments(free)]
        if keeping.jobs:
            self._order = {job.sequence: place for place, job in enumerate(keeping.in_order())}
        return [*keeping.expectations(), *keeping.assignments(available)]

    def _replan(self, view: View, snapshot: Snapshot, preemptible: Collection[Lease]) -> Replanner:
        return Replanner(view, snapshot, preemptible, self._weights, self._order)


def _most_in_time(
    options: list[tuple[JobRecord, Candidate]], view: View
) -> list[tuple[JobRecord, Candidate]]:
    """Return the largest set of jobs that are in time one after the other, by deadline.

    The longest of those up to a deadline that cannot be met is left out (Moore and Hodgson, 1968).
    Workers that have the engine share the work.
    """
    if len(options) == 1:
        return options
    options.sort(key=_by_deadline)
    kept: list[tuple[float, int]] = []
    at = min(candidate.worker.free_at(view.now) for _, candidate in options)
    for number, (job, candidate) in enumerate(options):
        took_s = candidate.completes_at - candidate.worker.free_at(view.now)
        took_s /= len(view.serving(job.job.engine))
        at += took_s
        heapq.heappush(kept, (-took_s, number))
        if at > job.job.deadline:
            at += heapq.heappop(kept)[0]
    return [options[number] for number in sorted([number for _, number in kept])]


def _by_deadline(option: tuple[JobRecord, Candidate]) -> float:
    return option[0].job.deadline


def _are_singles(waiting: Sequence[JobRecord]) -> bool:
    """Return whether a plan would only tell when jobs of one query complete; most are requests."""
    return all(job.pending.total == 1 for job in waiting)


def _longer_jobs(view: View) -> list[JobRecord]:
    """Return the first jobs of more than one query, which need not wait for leading single ones."""
    leading = islice(view.queue.in_order(now=view.now), MAX_SINGLES)
    return list(islice((job for job in leading if job.pending.total > 1), MAX_JOBS))


def _relevant_workers(
    view: View, waiting: Sequence[JobRecord], available: Sequence[WorkerRecord]
) -> list[WorkerRecord]:
    """Return the workers to plan for: all of a small fleet, the most promising of a large one.

    These are the best available workers and those available soonest; if none is available, also
    those whose running job has the most slack.
    """
    fleet = view.workers.values()
    if len(fleet) <= MAX_WORKERS:
        return [worker for worker in fleet if not worker.withdrawn]
    if not waiting:
        return list(available[:1])
    first = waiting[0]
    if available:
        chosen = [c.worker for c in view.candidates(first, available)[: MAX_WORKERS - 2]]
    else:
        busy = [w for w in view.serving(first.job.engine) if w.leases and not w.withdrawn]
        chosen = heapq.nlargest(MAX_WORKERS - 2, busy, key=_slack)
    soonest = view.next_available(MAX_WORKERS, first.job.engine)
    return list(dict.fromkeys([*chosen, *soonest]))[:MAX_WORKERS]


def _keeps(
    job: JobRecord, worker: WorkerRecord, workers: Sequence[WorkerRecord], view: View
) -> bool:
    """Return whether a late job keeps a worker: all but the fastest of `workers`.

    It gives way to every job that may still be in time, and would lose setup after setup.
    """
    if view.now <= job.job.deadline:
        return False
    return worker is not min(workers, key=lambda other: _per_query_s(job, other, view))


def _per_query_s(job: JobRecord, worker: WorkerRecord, view: View) -> float:
    estimate = view.best_estimate(job, worker)
    if estimate is None:
        return math.inf
    return estimate.batch_gain(job.job.queries) * estimate.per_query_s


def _runs_last_query(worker: WorkerRecord, now: float) -> bool:
    """Return whether the worker's head could only be aborted, which is not the policy's choice."""
    head = worker.head
    return head is not None and head.remaining <= head.rows and setup_left_s(head, now) == 0.0


def _slack(worker: WorkerRecord) -> float:
    if worker.head is None:
        return math.inf
    return worker.head.job.job.deadline - worker.head_ends_at
