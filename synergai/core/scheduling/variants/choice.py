"""Choice among the variants of an engine, when its queries are assigned.

Policies plan with the fastest variant that a job may use: a job is late, or infeasible, only if
that one is too slow. The variant is chosen when queries are assigned to a worker: the most
accurate that worker time pays for (see `pools`) and that lets this query and those behind it keep
their deadlines (see `margins`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.variants.demand import JOB_SHARE
from synergai.core.scheduling.variants.margins import Margins, Query
from synergai.core.scheduling.variants.pools import Fronts, Pools

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from synergai.core.scheduling.job_queue import JobQueue
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.estimate import Estimate
    from synergai.core.scheduling.state.estimator import Estimator
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.variants.allowance import ConvexFront
    from synergai.domain import EngineName, WorkerId

_ROUNDING: Final = 1e-9
SHARED: Final = 0.3
"""Most credit of an engine that shares workers with others, in costs of its slowest variant.

A query that uses up more is long, and those of the others wait for it.
"""


class Credit:
    """Chooses variants whose mean cost is an allowance that lies between two of them.

    What a query leaves of its allowance is spent on a slower variant now and then. A query that has
    to use a slower variant than its allowance pays for leaves a debt, which later ones pay back.
    """

    def __init__(self) -> None:
        self._balance = 0.0

    def choose(
        self,
        costs: Sequence[float],
        allowance: float,
        in_time: Callable[[int], int] | None = None,
        most: float = 1.0,
    ) -> int:
        """Return the number of the variant for the next query, by ascending costs.

        `in_time` returns the slowest variant, up to a given one, that this very query may use.
        `most` is the credit that is kept for later, in costs of the slowest variant.
        """
        balance = self._balance
        means = allowance + balance if balance < 0.0 else allowance
        at = bisect_right(costs, means + _ROUNDING) - 1
        if at < 0:
            at = 0
        if balance > 0.0 and at + 1 < len(costs) and allowance + balance >= costs[at + 1]:
            at += 1
        if at and in_time is not None:
            at = in_time(at)
        slowest = costs[-1]
        balance += min(slowest, allowance) - costs[at]
        self._balance = min(max(balance, -slowest), most * slowest)
        return at


_CHUNK_S: Final = 10.0
"""Duration of a job's assignments, after which its variant is chosen again."""


class Variants:
    """Fronts, demand and allowances of the engines with variants.

    Attributes:
        engines: engines with variants that the fleet has; empty with other objectives.
        families: the load of the engines with variants, whose requests and jobs are counted there.
        sharing: the variants that share a worker with other variants.
        rule: returns the number of the variant of a query's front that is used.
    """

    def __init__(
        self,
        estimator: Estimator,
        workers: Mapping[WorkerId, WorkerRecord],
        serving: Callable[[EngineName], Sequence[WorkerRecord]],
        queue: JobQueue,
        settings: SchedulingSettings,
    ) -> None:
        self._estimator = estimator
        self._workers = workers
        self._serving = serving
        self._queue = queue
        self.is_on = settings.objective == "accuracy"
        self.engines: frozenset[EngineName] = frozenset()
        self.sharing: frozenset[EngineName] = frozenset()
        self._fronts = Fronts(estimator)
        self._pools = Pools(estimator, workers, serving, queue, self._fronts)
        self.families = self._pools.families
        self.margins = Margins(serving, queue)
        self._credits: dict[EngineName, Credit] = {}
        self.rule: Callable[[Query], int] = self._spend

    # --- changes ------------------------------------------------------------------------

    def fleet_changed(self) -> None:
        """Look again which engines have variants, as a worker or its engines changed."""
        if not self.is_on:
            return
        before = self.engines
        self.engines = frozenset(
            engine
            for worker in self._workers.values()
            for engine in worker.variants
            if engine in worker.engines
        )
        self._pools.fleet_changed(self.engines)
        shared = [worker.engines & self.engines for worker in self._workers.values()]
        self.sharing = frozenset().union(*(each for each in shared if len(each) > 1))
        for engine in self.engines - before:  # whose jobs were not known to be of this kind
            jobs = self.families[engine].jobs
            for job in self._queue.in_order({engine}):
                if not job.is_request:
                    jobs.add(job)

    def charge(self, worker: WorkerRecord, seconds: float, now: float) -> None:
        """Count worker time of a request for an engine without variants."""
        self._pools.charge(worker, seconds, now)

    # --- load ---------------------------------------------------------------------------

    def allowance(self, engine: EngineName, now: float) -> float:
        """Return the mean cost that a query may have, in times of the fastest variant."""
        return self._pools.allowance(engine, now)

    def fastest(self, engine: EngineName, worker: WorkerRecord, now: float) -> Estimate | None:
        """Return the variant that is always kept loaded on a worker; None if none is profiled."""
        front = self._fronts.of(engine, worker, None, now, with_tensors=True)
        return None if front is None else front.estimates[front.positions[0]]

    def wanted(self, engine: EngineName, worker: WorkerRecord, now: float) -> list[Estimate]:
        """Return the variants that are to be loaded on a worker, the most important first."""
        front = self._fronts.of(engine, worker, None, now, with_tensors=True)
        estimates = self._estimator.estimates(engine, worker)
        if front is None or not estimates[0].configuration.variant:
            return []
        at = max(0, bisect_right(front.costs, self.allowance(engine, now)) - 1)
        order = dict.fromkeys((0, at, at + 1, at - 1))
        return [estimates[front.positions[n]] for n in order if 0 <= n < len(front.positions)]

    def missing_accuracy(self, job: JobRecord, worker: WorkerRecord, now: float) -> float:
        """Return the relative accuracy that a request misses by what a worker has not loaded."""
        front = self._fronts.of(
            job.job.engine, worker, job.limit, now, with_tensors=job.job.with_tensors
        )
        if front is None:
            return 0.0
        best = front.values[-1]
        for position, value in zip(reversed(front.positions), reversed(front.values), strict=True):
            if front.estimates[position].session in worker.sessions:
                return best - value
        return best

    # --- choice -------------------------------------------------------------------------

    def choose(
        self, job: JobRecord, worker: WorkerRecord, estimate: Estimate, count: int, now: float
    ) -> tuple[Estimate, int]:
        """Return the variant in which a worker runs a job's next queries, and how many of them."""
        if not job.is_request:
            return self.choose_for_job(job, worker, estimate, now, count)
        engine, deadline = job.job.engine, job.job.deadline
        front = self._fronts.of(engine, worker, job.limit, now, with_tensors=job.job.with_tensors)
        if front is None:
            return estimate, count
        estimates = front.estimates
        if (joined := self._joined(worker, estimates, front)) is not None:
            return joined, count
        starts_at = worker.free_at(now)
        query = Query(engine, worker, front, starts_at, deadline, now, self.margins)
        at = self.rule(query)
        chosen = estimates[front.positions[at]]
        if chosen.setup_s > 0.0:
            chosen = self._resident(worker, estimate, front, at, deadline - starts_at)
        return chosen, count

    def choose_for_job(
        self, job: JobRecord, worker: WorkerRecord, estimate: Estimate, now: float, count: int = 1
    ) -> tuple[Estimate, int]:
        """Return the variant for a job's next queries on a worker, and how many are to use it.

        Of the two variants whose mixture completes the job in time, the faster one runs first.
        """
        engine = job.job.engine
        front = self._fronts.of(engine, worker, job.limit, now, with_tensors=job.job.with_tensors)
        if front is None:
            return estimate, count
        estimates = self._estimator.estimates(engine, worker)
        left_s = job.job.deadline - now
        costs = front.costs
        if math.isinf(left_s):
            return self._resident(worker, estimate, front, len(costs) - 1, left_s), count
        serving = self._serving(engine)
        fastest = estimates[front.positions[0]]
        fastest_s = fastest.batch_gain(job.job.queries) * fastest.per_query_s / costs[0]
        remaining = max(1, job.pending.total)
        allowance = JOB_SHARE * left_s * len(serving) / (remaining * fastest_s)
        allowance = min(allowance, self.allowance(engine, now))
        at = max(0, bisect_right(costs, allowance) - 1)
        chosen = self._resident(worker, estimate, front, at, left_s)
        if at + 1 < len(costs) and chosen is estimates[front.positions[at]]:
            cheap = (costs[at + 1] - allowance) / (costs[at + 1] - costs[at])
            count = min(count, max(1, math.ceil(remaining * min(1.0, cheap))))
        query_s = chosen.batch_gain(job.job.queries) * chosen.per_query_s
        return chosen, min(count, max(1, int(_CHUNK_S / query_s)))

    # --- internals ----------------------------------------------------------------------

    def _spend(self, query: Query) -> int:
        """Return the variant that the seconds of worker time for a query pay for now."""
        costs = query.front.costs
        if query.deadline == math.inf:
            return query.in_time(len(costs) - 1)
        engine = query.engine
        credit = self._credits.get(engine)
        if credit is None:
            credit = self._credits[engine] = Credit()
        most = SHARED if engine in self.sharing else 1.0
        return credit.choose(costs, self.allowance(engine, query.now), query.in_time, most)

    @staticmethod
    def _joined(
        worker: WorkerRecord, estimates: Sequence[Estimate], front: ConvexFront
    ) -> Estimate | None:
        """Return the variant of the batch that a request joins on the worker; None if of none."""
        last = worker.groups[-1] if worker.groups else None
        if last is None or last.leases % last.most == 0:
            return None  # the next batch may use another variant
        session = next(reversed(worker.leases.values())).session
        for position in front.positions:
            if estimates[position].session == session:
                return estimates[position]
        return None

    def _resident(
        self, worker: WorkerRecord, planned: Estimate, front: ConvexFront, at: int, left_s: float
    ) -> Estimate:
        """Return the nearest variant that is loaded, or one to load now if none is.

        Faster ones come first, then slower ones. One of unknown accuracy is considered only if
        no other one can be loaded in time. While another variant is being loaded, it is the one
        that the policy has planned with if none of the front is loaded.
        """
        engine = planned.session.engine
        estimates = self._estimator.estimates(engine, worker)
        for number in [*range(at, -1, -1), *range(at + 1, len(front.positions))]:
            loaded: Estimate = estimates[front.positions[number]]
            if loaded.session in worker.sessions:
                if front.values[number] > 0.0 or self._estimator.waits_for_load(engine, worker):
                    return loaded
                slower = front.positions[number + 1 : at + 1]
                return _to_load(estimates, slower, left_s, loaded)
        if self._estimator.waits_for_load(engine, worker):
            return planned
        fastest = estimates[front.positions[0]]
        return _to_load(estimates, front.positions[: at + 1], left_s, fastest)


def _to_load(
    estimates: Sequence[Estimate], positions: Sequence[int], left_s: float, otherwise: Estimate
) -> Estimate:
    """Return the slowest of some variants that answers in time if loaded first, or `otherwise`."""
    for position in reversed(positions):
        estimate = estimates[position]
        if estimate.setup_s + estimate.per_query_s <= JOB_SHARE * left_s:
            return estimate
    return otherwise
