"""Engines with variants that share workers, and the worker time that their queries may cost.

The allowances of a pool follow from its load, which changes with every event, and from its workers
and fronts, which rarely do. They are computed again once the load may have changed noticeably, and
not at every request.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.core.scheduling.variants.allowance import ConvexFront, Demand, allowances, build_front
from synergai.core.scheduling.variants.demand import ArrivalRate, JobDemand
from synergai.core.scheduling.variants.margins import FIRST_SPREAD, spread_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from synergai.core.scheduling.job_queue import JobQueue
    from synergai.core.scheduling.state.estimate import Limit
    from synergai.core.scheduling.state.estimator import Estimator
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.domain import EngineName, WorkerId

_REBUILT_EVERY_S: Final = 1.0
"""Age at which a front is built again, as transfer times drift."""
_MAX_FRONTS: Final = 64
"""Fronts of an engine on a worker that are kept, by floor and pinned variant."""
_PLANNED: Final = 0.95
"""Share of the workers' time that is planned for engines that share one; see `planned_share`."""
_ALONE: Final = 0.1
"""Addition for an engine that shares its workers with no other one: its requests differ less."""
_POOLED: Final = 0.2
"""Most that is added for several workers: a request waits for the first of them that is free."""
_WIDE: Final = 2.0
"""Mean margin for deviations from estimates at and above which nothing is added."""
HORIZON: Final = 2.5
"""Time that is planned ahead, in times that requests have on average."""
MIN_HORIZON_S: Final = 0.2
MAX_HORIZON_S: Final = 5.0
_STALE: Final = 0.04
"""Age, in horizons, at which allowances are computed again."""
_STALE_S: Final = 0.02
"""Age at which they always are."""
_QUEUED: Final = 4
"""Jobs by which a queue has to more than double before they are computed at once."""
_FOUND_FOR_S: Final = 0.25
"""Time after which the speed of the workers is determined again."""
_CHARGED_FOR_S: Final = 2.0
"""Time over which the worker time of engines without variants is averaged."""
_DEADLINE_WEIGHT: Final = 0.05


class Fronts:
    """The fronts of the workers' engines, kept and dropped with their estimates."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def of(
        self,
        engine: EngineName,
        worker: WorkerRecord,
        limit: Limit | None,
        now: float,
        *,
        with_tensors: bool,
    ) -> ConvexFront | None:
        """Return the front of an engine on a worker; see `build_front`."""
        fronts = worker.fronts.get(engine)
        if fronts is None:
            fronts = worker.fronts[engine] = {}
        key = limit, with_tensors
        front = fronts.get(key)
        estimates = self._estimator.estimates(engine, worker)
        if front is not None and now - front.built_at <= _REBUILT_EVERY_S:
            if front.estimates is not estimates:
                front.follow(estimates)
            return front
        variants = worker.variants.get(engine)
        reference = variants[0].name if variants else ""
        front = build_front(estimates, limit, now, with_tensors=with_tensors, reference=reference)
        if front is not None:
            if len(fronts) >= _MAX_FRONTS:  # clients may ask for any floor
                fronts.clear()
            fronts[key] = front
        return front


class Family:
    """Observed load of an engine with variants.

    Attributes:
        deadline_s: mean time that they have; infinite if they have no deadlines.
    """

    def __init__(self) -> None:
        self.arrivals = ArrivalRate()
        self.deadline_s = math.inf
        self.jobs = JobDemand()

    def arrived(self, job: JobRecord, now: float) -> None:
        """Count a request or job."""
        if not job.is_request:
            self.jobs.add(job)
            return
        self.arrivals.add(now)
        left_s = job.job.deadline - now
        if left_s < math.inf:
            if self.deadline_s == math.inf:
                self.deadline_s = left_s
            self.deadline_s += _DEADLINE_WEIGHT * (left_s - self.deadline_s)


class _Member(NamedTuple):
    """An engine of a pool.

    Attributes:
        fastest_s: mean seconds of its fastest variant on them.
        sample_cost: those of a query without tensors, which is not transferred, as a share of it.
    """

    engine: EngineName
    family: Family
    workers: int
    fastest_s: float
    sample_cost: float
    seconds: tuple[float, ...]
    front: ConvexFront


class _Pool:
    """Engines with variants that share workers, directly or through other engines.

    Attributes:
        fresh_until: when the allowances are to be computed again.
        check_at: the earlier of that, and of when its members are determined again.
        most_queued: number of waiting jobs beyond which they are computed earlier.
        allowed: allowance by engine, in times of its fastest variant.
    """

    def __init__(
        self, members: Sequence[_Member], workers: Sequence[WorkerRecord], now: float
    ) -> None:
        self.members = members
        self.workers = workers
        self.found_at = now
        self.fresh_until = self.check_at = -math.inf
        self.most_queued = 0
        self.allowed: dict[EngineName, float] = {}


class Pools:
    """The pools of a fleet, and the observed load of the engines with variants."""

    def __init__(
        self,
        estimator: Estimator,
        workers: Mapping[WorkerId, WorkerRecord],
        serving: Callable[[EngineName], Sequence[WorkerRecord]],
        queue: JobQueue,
        fronts: Fronts,
    ) -> None:
        self._estimator = estimator
        self._workers = workers
        self._serving = serving
        self._queue = queue
        self._fronts = fronts
        self._engines: Set[EngineName] = frozenset()
        self.families: defaultdict[EngineName, Family] = defaultdict(Family)
        self._pools: dict[EngineName, _Pool] = {}
        self._charged: dict[WorkerId, tuple[float, float]] = {}

    def fleet_changed(self, engines: Set[EngineName]) -> None:
        """Forget the pools, as workers or their engines changed."""
        self._engines = engines
        self._pools.clear()
        workers = self._workers
        self._charged = {each: used for each, used in self._charged.items() if each in workers}

    def charge(self, worker: WorkerRecord, seconds: float, now: float) -> None:
        """Count worker time of a request for an engine without variants."""
        known_s, at = self._charged.get(worker.id, (0.0, now))
        known_s *= math.exp((at - now) / _CHARGED_FOR_S)
        self._charged[worker.id] = known_s + seconds, now

    def allowance(self, engine: EngineName, now: float) -> float:
        """Return the mean cost that a query may have, in times of the fastest variant."""
        pool = self._pools.get(engine)
        if pool is None or now >= pool.check_at or self._queue.size > pool.most_queued:
            pool = self._renewed(pool, engine, now)
        return pool.allowed.get(engine, math.inf)

    # --- load ---------------------------------------------------------------------------

    def _renewed(self, pool: _Pool | None, engine: EngineName, now: float) -> _Pool:
        """Return the pool of an engine, with what has become too old computed again."""
        if pool is None or now - pool.found_at > _FOUND_FOR_S:
            pool = self._find(engine, now)
        if now >= pool.fresh_until or self._queue.size > pool.most_queued:
            self._allow(pool, now)
        pool.check_at = min(pool.fresh_until, pool.found_at + _FOUND_FOR_S)
        return pool

    def _allow(self, pool: _Pool, now: float) -> None:
        horizon_s = _horizon_s(pool.members)
        pool.fresh_until = now + min(_STALE * horizon_s, _STALE_S)
        pool.most_queued = 2 * self._queue.size + _QUEUED
        asking = [
            (member, queries)
            for member in pool.members
            if (queries := self._queries(member, horizon_s, now))
        ]
        if not asking:
            pool.allowed = {}
            return
        taken_s = 0.0
        for worker in pool.workers:
            if worker.leases or self._charged:
                taken_s += self._taken_s(worker, horizon_s, now)
        planned_s = planned_share(len(asking), len(pool.workers), _spread(pool)) * horizon_s
        budget_s = max(planned_s * len(pool.workers) - taken_s, 1e-9)
        if len(asking) == 1:  # nothing to divide, which is the usual case
            [(only, queries)] = asking
            most_s = min(budget_s, planned_s * only.workers)
            pool.allowed = {only.engine: most_s / queries / only.fastest_s}
            return
        demands = [
            Demand(queries, member.seconds, member.front.values, planned_s * member.workers)
            for member, queries in asking
        ]
        pool.allowed = {
            member.engine: seconds / member.fastest_s
            for (member, _), seconds in zip(
                asking, allowances(demands, budget_s, horizon_s), strict=True
            )
        }

    def _queries(self, member: _Member, horizon_s: float, now: float) -> float:
        """Return how many queries of an engine have to be answered within the horizon."""
        family = member.family
        jobs_per_s = family.jobs.per_s(now, horizon_s, member.sample_cost)
        rate = family.arrivals.observe(now) + jobs_per_s
        return self._queue.with_deadlines(member.engine) + rate * horizon_s

    def _taken_s(self, worker: WorkerRecord, horizon_s: float, now: float) -> float:
        taken_s = 0.0
        if (charged := self._charged.get(worker.id)) is not None:
            seconds, at = charged
            taken_s = seconds * math.exp((at - now) / _CHARGED_FOR_S) / _CHARGED_FOR_S * horizon_s
        if worker.leases and (head := worker.head) is not None and head.job.is_request:
            taken_s += worker.free_at(now) - now  # a job yields to requests
        return min(taken_s, horizon_s)

    # --- members ------------------------------------------------------------------------

    def _find(self, engine: EngineName, now: float) -> _Pool:
        """Collect the engines with variants that share workers with an engine."""
        engines = {engine}
        workers: dict[int, WorkerRecord] = {}
        grown = [engine]
        while grown:
            for worker in self._serving(grown.pop()):
                if worker.withdrawn or worker.index in workers:
                    continue
                workers[worker.index] = worker
                found = (self._engines & worker.engines) - engines
                engines |= found
                grown += found
        members = [
            member for each in sorted(engines) if (member := self._member(each, now)) is not None
        ]
        pool = _Pool(members, list(workers.values()), now)
        if (before := self._pools.get(engine)) is not None:
            pool.allowed = before.allowed
            pool.fresh_until, pool.most_queued = before.fresh_until, before.most_queued
        for each in engines:
            self._pools[each] = pool
        return pool

    def _member(self, engine: EngineName, now: float) -> _Member | None:
        rate = sample_rate = 0.0
        first: ConvexFront | None = None
        workers = 0
        for worker in self._serving(engine):
            if worker.withdrawn:
                continue
            front = self._fronts.of(engine, worker, None, now, with_tensors=True)
            if front is None:
                continue
            workers += 1
            fastest = self._estimator.estimates(engine, worker)[front.positions[0]]
            rate += 1.0 / fastest.capacity_s(with_tensors=True)
            sample_rate += 1.0 / fastest.capacity_s(with_tensors=False)
            first = first or front
        if first is None:
            return None
        fastest_s = workers / rate
        seconds = tuple([cost * fastest_s for cost in first.costs])
        sample_cost = rate / sample_rate
        return _Member(
            engine, self.families[engine], workers, fastest_s, sample_cost, seconds, first
        )


def planned_share(engines: int, workers: int, spread: float) -> float:
    """Return the share of the workers' time within the horizon that is planned.

    The rest absorbs bursts. It may exceed 1, since all that waits and runs now is assumed to be
    done within the horizon, although as much will wait and run at its end.
    """
    added = _POOLED * (1.0 - 1.0 / max(workers, 1))
    if engines == 1:
        added += _ALONE
    steady = (_WIDE - spread) / (_WIDE - FIRST_SPREAD)
    return _PLANNED + added * min(max(steady, 0.0), 1.0)


def _spread(pool: _Pool) -> float:
    """Return the mean margin of a pool's workers for deviations from estimates of its engines."""
    spreads = [
        max(spread_of(each, member.front.slowest.entry) for member in pool.members)
        for each in pool.workers
    ]
    return sum(spreads) / len(spreads)


def _horizon_s(members: Sequence[_Member]) -> float:
    total_s, finite = 0.0, 0
    for member in members:
        if (deadline_s := member.family.deadline_s) < math.inf:
            total_s += deadline_s
            finite += 1
    if not finite:
        return MAX_HORIZON_S
    return min(max(HORIZON * total_s / finite, MIN_HORIZON_S), MAX_HORIZON_S)
