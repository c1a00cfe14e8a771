"""Choice among the variants of an engine, when its queries are assigned.

Policies plan with the fastest variant that a job may use: a job is late, or infeasible, only if
that one is too slow. Which variant runs is decided when queries are assigned to a worker: the most
accurate that worker time pays for (see `allowance`) and that lets this query and those behind it
keep their deadlines.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.scheduling.allowance import Credit, Demand, allowances
from synergai.scheduling.arrivals import ArrivalRate
from synergai.scheduling.choosers import CHOOSERS, Query
from synergai.scheduling.fronts import REBUILT_EVERY_S, Front, build_front, capacity_s
from synergai.scheduling.job_demand import JOB_SHARE, JobDemand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import EngineName, WorkerId
    from synergai.scheduling.choosers import Load
    from synergai.scheduling.estimate import Estimate
    from synergai.scheduling.estimator import Estimator
    from synergai.scheduling.fleet import Fleet
    from synergai.scheduling.loads import Loads
    from synergai.scheduling.queue import JobQueue
    from synergai.scheduling.settings import SchedulingSettings
    from synergai.scheduling.state import JobRecord, Lease, WorkerRecord

RHO: Final = 0.95
"""Share of the workers' time that is planned; the rest absorbs bursts."""
HORIZON: Final = 2.5
"""Time that is planned ahead, in times that requests have on average."""
MIN_HORIZON_S: Final = 0.2
MAX_HORIZON_S: Final = 5.0
_CHUNK_S: Final = 10.0
"""Duration of a job's assignments, after which its variant is chosen again."""
_STALE: Final = 0.004
"""Age, in horizons, at which allowances are computed again."""
_POOLED_FOR_S: Final = 0.25
"""Time after which it is looked again how fast the workers are."""
_BEHIND: Final = 16
"""Waiting requests that are looked at to see whether they keep their deadlines."""
_OTHERS: Final = 8
"""Other workers that are looked at for the same purpose."""
_MAX_FRONTS: Final = 64
"""Fronts of an engine on a worker that are kept, by floor and pinned variant."""
_CHARGED_FOR_S: Final = 2.0
"""Time over which the worker time of engines without variants is averaged."""
_DEADLINE_WEIGHT: Final = 0.05
_QUANTILE: Final = 0.998
"""Share of requests whose times are within the margin that is kept for them."""
_SPREAD_STEP: Final = 0.02
_FIRST_SPREAD: Final = 1.3
_MAX_SPREAD: Final = 3.0


class _Family:
    """What was seen of an engine with variants."""

    __slots__ = ("arrivals", "deadline_s", "jobs")

    def __init__(self) -> None:
        self.arrivals = ArrivalRate()
        self.deadline_s = math.inf
        self.jobs = JobDemand()


class _Member(NamedTuple):
    """An engine of a pool.

    Attributes:
        workers: how many workers have it.
        fastest_s: mean seconds of its fastest variant on them.
        front: its variants on one of them.
    """

    engine: EngineName
    workers: int
    fastest_s: float
    front: Front


class _Pool:
    """Engines with variants that share workers, directly or through other engines.

    Attributes:
        found_at: when it was looked who belongs to it.
        allowed_at: when the allowances were computed.
        allowed: allowance by engine, in times of its fastest variant.
    """

    __slots__ = ("allowed", "allowed_at", "found_at", "members", "workers")

    def __init__(
        self, members: Sequence[_Member], workers: Sequence[WorkerRecord], now: float
    ) -> None:
        self.members = members
        self.workers = workers
        self.found_at = now
        self.allowed_at = -math.inf
        self.allowed: dict[EngineName, float] = {}


class Variants:
    """Fronts, demand and allowances of the engines with variants.

    Args:
        estimator: knows what variants cost.
        fleet: the workers.
        queue: the waiting requests and jobs.
        loads: sessions that are being loaded.
        settings: scheduling options.

    Attributes:
        engines: engines with variants that the fleet has.
        is_on: the objective is ``accuracy``.

    Raises:
        InvalidInput: the rule by which variants are chosen does not exist.
    """

    def __init__(
        self,
        estimator: Estimator,
        fleet: Fleet,
        queue: JobQueue,
        loads: Loads,
        settings: SchedulingSettings,
    ) -> None:
        self._estimator = estimator
        self._fleet = fleet
        self._queue = queue
        self._loads = loads
        self.is_on = settings.objective == "accuracy"
        self.engines: frozenset[EngineName] = frozenset()
        self._families: dict[EngineName, _Family] = {}
        self._pools: dict[EngineName, _Pool] = {}
        self._spread: dict[tuple[WorkerId, EngineName], float] = {}
        self._charged: dict[WorkerId, tuple[float, float]] = {}
        self._chooser = CHOOSERS.get(settings.chooser)(self)

    # --- changes ------------------------------------------------------------------------

    def fleet_changed(self) -> None:
        """Look again which engines have variants, as a worker or its engines changed."""
        self._pools.clear()
        workers = self._fleet.workers
        self._charged = {each: used for each, used in self._charged.items() if each in workers}
        self._spread = {key: each for key, each in self._spread.items() if key[0] in workers}
        before = self.engines
        self.engines = frozenset(
            engine
            for worker in workers.values()
            for engine in worker.variants
            if engine in worker.engines
        )
        for engine in self.engines - before:  # whose jobs were not known to be of this kind
            jobs = self._family(engine).jobs
            for job in self._queue.in_order({engine}):
                if not job.is_request:
                    jobs.add(job)

    def arrived(self, job: JobRecord, now: float) -> None:
        """Count a request or job of an engine with variants."""
        family = self._family(job.job.engine)
        if not job.is_request:
            family.jobs.add(job)
            return
        family.arrivals.add(now)
        left_s = job.job.deadline - now
        if math.isfinite(left_s):
            if math.isinf(family.deadline_s):
                family.deadline_s = left_s
            family.deadline_s += _DEADLINE_WEIGHT * (left_s - family.deadline_s)

    def removed(self, job: JobRecord) -> None:
        """Forget a job that left the system."""
        if (family := self._families.get(job.job.engine)) is not None:
            family.jobs.remove(job)

    def charge(self, worker: WorkerRecord, seconds: float, now: float) -> None:
        """Count worker time of a request for an engine without variants."""
        known_s, at = self._charged.get(worker.id, (0.0, now))
        known_s *= math.exp((at - now) / _CHARGED_FOR_S)
        self._charged[worker.id] = known_s + seconds, now

    def answered(self, lease: Lease, now: float) -> None:
        """Learn from a request's assignment by how much times exceed their estimates."""
        head_at = lease.head_at
        if head_at is None or lease.batch_size > 1 or lease.assignment.setup_s > 0.0:
            return
        key = lease.assignment.worker_id, lease.assignment.engine
        spread = self._spread.get(key, _FIRST_SPREAD)
        exceeded = now - head_at > spread * lease.expected_s
        spread *= 1.0 + _SPREAD_STEP * (_QUANTILE if exceeded else _QUANTILE - 1.0)
        self._spread[key] = min(max(spread, 1.0), _MAX_SPREAD)

    # --- load ---------------------------------------------------------------------------

    def arrivals_per_s(self, engine: EngineName, now: float) -> float:
        """Return how many requests of the engine arrived within the last second."""
        return self._family(engine).arrivals.per_s(now)

    def deadline_s(self, engine: EngineName) -> float:
        """Return the mean time that requests have; infinite if they have no deadlines."""
        return self._family(engine).deadline_s

    def workers(self, engine: EngineName) -> Sequence[WorkerRecord]:
        """Return the workers that have the engine."""
        return self._fleet.serving(engine)

    def allowance(self, engine: EngineName, now: float) -> float:
        """Return the mean cost that a query may have, in times of the fastest variant."""
        pool = self._pools.get(engine)
        if pool is None or now - pool.found_at > _POOLED_FOR_S:
            pool = self._find_pool(engine, now)
        horizon_s = self._horizon_s(pool)
        if now - pool.allowed_at > _STALE * horizon_s:
            self._allow(pool, horizon_s, now)
        return pool.allowed.get(engine, math.inf)

    def wanted(self, engine: EngineName, worker: WorkerRecord, now: float) -> list[Estimate]:
        """Return the variants that are to be loaded on a worker, the most important first.

        These are the fastest, the one that the load allows, and its neighbours.
        """
        estimates = self._estimator.estimates(engine, worker)
        front = build_front(estimates, None, now, batched=True)
        if front is None or not estimates[0].configuration.variant:
            return []
        at = max(0, bisect_right(front.costs, self.allowance(engine, now)) - 1)
        order = dict.fromkeys((0, at, at + 1, at - 1))
        return [estimates[front.places[n]] for n in order if 0 <= n < len(front.places)]

    # --- choice -------------------------------------------------------------------------

    def choose(
        self, job: JobRecord, worker: WorkerRecord, estimate: Estimate, count: int, now: float
    ) -> tuple[Estimate, int]:
        """Return the variant in which a worker runs a job's next queries, and how many of them.

        Args:
            job: a job of an engine with variants.
            worker: the worker.
            estimate: the one that the policy planned with.
            count: number of queries that the policy assigns.
            now: the instant of the event.
        """
        if not job.is_request:
            return self.choose_for_job(job, worker, estimate, now, count)
        engine = job.job.engine
        estimates = self._estimator.estimates(engine, worker)
        front = self._front(job, worker, now)
        if front is None:
            return estimate, count
        places = front.places
        if worker.max_batch > 1 and (joined := self._joined(worker, estimates, front)) is not None:
            return joined, count
        fastest_s = capacity_s(estimates[places[0]], batched=job.job.with_tensors)
        fastest_s /= front.costs[0]
        starts_at = worker.free_at(now) if worker.leases else now
        left_s = job.job.deadline - starts_at

        def limit_s() -> float:
            return self._limit_s(worker, engine, left_s, fastest_s, starts_at, now)

        query = Query(engine, worker, front, fastest_s, left_s, limit_s, now)
        at = self._chooser.choose(query)
        chosen = estimates[places[at]]
        if chosen.setup_s > 0.0:
            chosen = self._resident(worker, estimate, front, at, left_s)
        return chosen, count

    def choose_for_job(
        self, job: JobRecord, worker: WorkerRecord, estimate: Estimate, now: float, count: int = 1
    ) -> tuple[Estimate, int]:
        """Return the variant for a job's next queries on a worker, and how many are to use it.

        Of the two variants whose mixture completes the job in time, the faster one runs first.
        """
        front = self._front(job, worker, now)
        if front is None:
            return estimate, count
        estimates = self._estimator.estimates(job.job.engine, worker)
        left_s = job.job.deadline - now
        costs = front.costs
        if math.isinf(left_s):
            return self._resident(worker, estimate, front, len(costs) - 1, left_s), count
        serving = self._fleet.serving(job.job.engine)
        fastest_s = estimates[front.places[0]].per_query_s / costs[0]
        remaining = max(1, job.pending.total)
        allowance = JOB_SHARE * left_s * len(serving) / (remaining * fastest_s)
        allowance = min(allowance, self.allowance(job.job.engine, now))
        at = max(0, bisect_right(costs, allowance) - 1)
        chosen = self._resident(worker, estimate, front, at, left_s)
        if at + 1 < len(costs) and chosen is estimates[front.places[at]]:
            cheap = (costs[at + 1] - allowance) / (costs[at + 1] - costs[at])
            count = min(count, max(1, math.ceil(remaining * min(1.0, cheap))))
        return chosen, min(count, max(1, int(_CHUNK_S / chosen.per_query_s)))

    # --- internals ----------------------------------------------------------------------

    def _family(self, engine: EngineName) -> _Family:
        try:
            return self._families[engine]
        except KeyError:
            family = self._families[engine] = _Family()
            return family

    def _front(self, job: JobRecord, worker: WorkerRecord, now: float) -> Front | None:
        engine = job.job.engine
        fronts = worker.fronts.get(engine)
        if fronts is None:
            fronts = worker.fronts[engine] = {}
        batched = job.job.with_tensors
        key = job.limit, batched
        front = fronts.get(key)
        if front is None or now - front.built_at > REBUILT_EVERY_S:
            estimates = self._estimator.estimates(engine, worker)
            front = build_front(estimates, job.limit, now, batched=batched)
            if front is not None:
                if len(fronts) >= _MAX_FRONTS:  # clients may ask for any floor
                    fronts.clear()
                fronts[key] = front
        return front

    @staticmethod
    def _joined(
        worker: WorkerRecord, estimates: Sequence[Estimate], front: Front
    ) -> Estimate | None:
        """Return the variant of the batch that a request joins on the worker; None if of none."""
        if len(worker.leases) % worker.max_batch == 0:
            return None  # the next batch may use another variant
        session = next(reversed(worker.leases.values())).session
        for place in front.places:
            if estimates[place].session == session:
                return estimates[place]
        return None

    def _resident(
        self, worker: WorkerRecord, planned: Estimate, front: Front, at: int, left_s: float
    ) -> Estimate:
        """Return the nearest variant that is loaded, or one to load now if none is.

        Faster ones come first, then slower ones. While another variant is being loaded, it is the
        one that the policy has planned with if none of the front is loaded.
        """
        engine = planned.session.engine
        estimates = self._estimator.estimates(engine, worker)
        for place in (*reversed(front.places[: at + 1]), *front.places[at + 1 :]):
            if estimates[place].session in worker.sessions:
                return estimates[place]
        if self._estimator.waits_for_load(engine, worker):
            return planned
        for place in reversed(front.places[: at + 1]):
            estimate = estimates[place]
            if estimate.setup_s + estimate.per_query_s <= JOB_SHARE * left_s:
                return estimate
        return estimates[front.places[0]]

    def _limit_s(
        self,
        worker: WorkerRecord,
        engine: EngineName,
        left_s: float,
        fastest_s: float,
        starts_at: float,
        now: float,
    ) -> float:
        """Return the most seconds that a request may take on the worker.

        The requests behind it, with their fastest variants and on all workers of the engine, are
        to keep their deadlines as well.
        """
        spread = self._spread.get((worker.id, engine), _FIRST_SPREAD)
        if (head := worker.head) is not None and math.isfinite(head.expected_s):
            late_s = (spread - 1.0) * head.expected_s  # by which it may start later
            starts_at += late_s
            left_s -= late_s
        limit_s = left_s / spread
        behind = self._queue.latest_starts(worker.engines, _BEHIND)
        if len(behind) < 2:
            return limit_s
        others_free = 0.0
        others = 0
        for other in self._fleet.serving(engine):
            if other is not worker and not other.withdrawn:
                others_free += max(other.free_at(now), now)
                others += 1
                if others == _OTHERS:
                    break
        query_s = fastest_s * spread
        for ahead, latest_start in enumerate(behind[1:], 1):
            helped_s = max(0.0, others * latest_start - others_free)
            if helped_s >= ahead * query_s:
                continue
            most_s = latest_start - starts_at + helped_s - (ahead - 1) * query_s
            limit_s = min(limit_s, most_s / spread)
        return limit_s

    # --- allowances ---------------------------------------------------------------------

    def _horizon_s(self, pool: _Pool) -> float:
        finite = [
            family.deadline_s
            for member in pool.members
            if math.isfinite((family := self._family(member.engine)).deadline_s)
        ]
        if not finite:
            return MAX_HORIZON_S
        return min(max(HORIZON * sum(finite) / len(finite), MIN_HORIZON_S), MAX_HORIZON_S)

    def _allow(self, pool: _Pool, horizon_s: float, now: float) -> None:
        """Divide the pool's worker time among its engines."""
        pool.allowed_at = now
        taken_s = sum(self._taken_s(worker, horizon_s, now) for worker in pool.workers)
        demands, members = [], []
        for member in pool.members:
            family = self._family(member.engine)
            queries = float(self._queue.with_deadlines(member.engine))
            queries += family.arrivals.per_s(now) * horizon_s
            queries += family.jobs.per_s(now, horizon_s) * horizon_s
            if queries > 0.0:
                front = member.front
                seconds = [cost * member.fastest_s for cost in front.costs]
                most_s = RHO * member.workers * horizon_s
                demands.append(Demand(queries, seconds, front.values, most_s))
                members.append(member)
        if not demands:
            pool.allowed = {}
            return
        budget_s = max(RHO * len(pool.workers) * horizon_s - taken_s, 1e-9)
        pool.allowed = {
            member.engine: seconds / member.fastest_s
            for member, seconds in zip(members, allowances(demands, budget_s), strict=True)
        }

    def _taken_s(self, worker: WorkerRecord, horizon_s: float, now: float) -> float:
        """Return the part of the horizon that the worker's other work takes."""
        seconds, at = self._charged.get(worker.id, (0.0, now))
        taken_s = seconds * math.exp((at - now) / _CHARGED_FOR_S) / _CHARGED_FOR_S * horizon_s
        if worker.head is not None and worker.head.job.is_request:  # a job yields to requests
            taken_s += worker.free_at(now) - now
        return min(taken_s, horizon_s)

    def _find_pool(self, engine: EngineName, now: float) -> _Pool:
        """Collect the engines with variants that share workers with an engine."""
        engines = {engine}
        workers: dict[int, WorkerRecord] = {}
        grown = [engine]
        while grown:
            for worker in self._fleet.serving(grown.pop()):
                if worker.withdrawn or worker.index in workers:
                    continue
                workers[worker.index] = worker
                found = (self.engines & worker.engines) - engines
                engines |= found
                grown += found
        members = [
            member for each in sorted(engines) if (member := self._member(each, now)) is not None
        ]
        pool = _Pool(members, list(workers.values()), now)
        if (before := self._pools.get(engine)) is not None:
            pool.allowed, pool.allowed_at = before.allowed, before.allowed_at
        for each in engines:
            self._pools[each] = pool
        return pool

    def _member(self, engine: EngineName, now: float) -> _Member | None:
        rate = 0.0
        front = None
        workers = 0
        for worker in self._fleet.serving(engine):
            estimates = self._estimator.estimates(engine, worker)
            if worker.withdrawn or not estimates:
                continue
            workers += 1
            rate += 1.0 / min(capacity_s(each, batched=True) for each in estimates)
            front = front or build_front(estimates, None, now, batched=True)
        return None if front is None else _Member(engine, workers, workers / rate, front)


class Allowance:
    """Chooses by the seconds of worker time that a query may cost now; see `allowance`.

    Args:
        load: the engines with variants.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._credits: dict[EngineName, Credit] = {}

    def choose(self, query: Query) -> int:
        """Return the number of a variant of the query's front."""
        costs = query.front.costs
        engine = query.engine
        credit = self._credits.get(engine)
        if credit is None:
            credit = self._credits[engine] = Credit()
        limit = query.limit_s() / query.fastest_s
        if math.isinf(query.left_s):
            return max(0, bisect_right(costs, limit) - 1)
        return credit.choose(costs, self._load.allowance(engine, query.now), limit)
