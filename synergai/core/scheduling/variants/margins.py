"""Limits on the variant of a single request: deadlines, with a margin for the workers' deviations.

A request is to keep its own deadline, and so are the requests that wait behind it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.core.scheduling.job_queue import JobQueue
    from synergai.core.scheduling.state.jobs import Lease
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.variants.allowance import ConvexFront
    from synergai.domain import EngineName
    from synergai.profiles.dictionary import ProfileEntry

_BEHIND: Final = 16
"""Waiting requests that are looked at to see whether they keep their deadlines."""
_OTHERS: Final = 8
"""Other workers that are looked at for the same purpose."""
_QUANTILE: Final = 0.998
"""Share of requests whose times are within the margin that is kept for them."""
_SPREAD_STEP: Final = 0.02
_WIDER: Final = 1.0 + _SPREAD_STEP * _QUANTILE
_NARROWER: Final = 1.0 + _SPREAD_STEP * (_QUANTILE - 1.0)
FIRST_SPREAD: Final = 1.3
"""Least margin of a worker that has answered nothing yet: in service, times deviate more than while
a profile is measured."""
_MAX_SPREAD: Final = 3.0


class Query(Struct, frozen=True):
    """A request that a worker runs next, in a variant to be chosen."""

    engine: EngineName
    worker: WorkerRecord
    front: ConvexFront
    starts_at: float
    deadline: float
    now: float
    limits: Margins

    def in_time(self, at: int) -> int:
        """Return the slowest variant, up to a given one, that keeps all deadlines."""
        return self.limits.slowest_in_time(self, at) if at else 0


class Margins:
    """The slowest variants with which requests keep their deadlines.

    The margin is the ratio of actual to expected times that nearly all requests stay below. It
    begins with that of the profile, and is learnt for each worker and engine.
    """

    def __init__(
        self, serving: Callable[[EngineName], Sequence[WorkerRecord]], queue: JobQueue
    ) -> None:
        self._serving = serving
        self._queue = queue

    def answered(self, lease: Lease, worker: WorkerRecord, now: float) -> None:
        """Learn from a request's assignment by how much times exceed their estimates."""
        head_at = lease.head_at
        assignment = lease.assignment
        if head_at is None or lease.batch_size > 1 or assignment.setup_s > 0.0:
            return
        if lease.estimate is None:
            return
        engine = assignment.engine
        spread = spread_of(worker, lease.estimate.entry)
        if now - head_at > spread * lease.expected_s:
            worker.spreads[engine] = min(spread * _WIDER, _MAX_SPREAD)
        elif spread > 1.0:
            worker.spreads[engine] = max(spread * _NARROWER, 1.0)

    def slowest_in_time(self, query: Query, at: int) -> int:
        """Return the slowest variant, up to a given one, that a request may use on a worker.

        With it the request keeps its deadline, and so do the requests behind it, with their fastest
        variants and on all workers of the engine. If there is none, it is the fastest.
        """
        worker, starts_at = query.worker, query.starts_at
        spread = spread_of(worker, query.front.slowest.entry)
        if worker.leases and (head := worker.head) is not None and math.isfinite(head.expected_s):
            starts_at += (spread - 1.0) * head.expected_s  # by which it may start later
        costs = query.front.costs
        query_s = query.front.fastest_s * spread
        left_s = query.deadline - starts_at
        while at and costs[at] * query_s > left_s:
            at -= 1
        if not at or self._queue.size < 2:
            return at
        behind = self._queue.latest_starts(worker.engines, _BEHIND, query.now)
        # The first is this request. If the most urgent one could be the last, so could all others.
        if len(behind) < 2 or starts_at + (costs[at] + len(behind) - 2) * query_s <= behind[1]:
            return at
        left_s = self._left_s(behind, query, starts_at, query_s)
        while at and costs[at] * query_s > left_s:
            at -= 1
        return at

    def _left_s(self, behind: list[float], query: Query, starts_at: float, query_s: float) -> float:
        """Return the most seconds that the requests behind a request leave to it.

        `behind` has when each must start, ascending; the first one is the request itself. Each of
        the others takes `query_s`.
        """
        now = query.now
        others_free = 0.0
        others = 0
        for other in self._serving(query.engine):
            if other is not query.worker and not other.withdrawn:
                others_free += max(other.free_at(now), now)
                others += 1
                if others == _OTHERS:
                    break
        least_s = math.inf
        ahead_s = 0.0  # what those ahead take, this request aside
        for latest_start in behind[1:]:
            helped_s = others * latest_start - others_free if others else 0.0
            if helped_s < ahead_s + query_s:
                left_s = latest_start - starts_at - ahead_s
                if helped_s > 0.0:
                    left_s += helped_s
                if left_s < least_s:
                    least_s = left_s
            ahead_s += query_s
        return least_s


def spread_of(worker: WorkerRecord, entry: ProfileEntry) -> float:
    """Return the margin of an engine on a worker: what was learnt, or else what was profiled."""
    learnt = worker.spreads.get(entry.engine)
    if learnt is not None:
        return learnt
    profiled = entry.latency_p99_s / entry.latency_p50_s if entry.latency_p50_s else 0.0
    return min(max(profiled, FIRST_SPREAD), _MAX_SPREAD)
