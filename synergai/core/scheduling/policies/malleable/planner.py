"""Plans for divisible jobs: the share of each job that every worker runs.

A plan is an order of jobs and, for each job, the workers it may be split over. Jobs are
distributed in turn by water-filling: worker ``w`` is ready for the job at ``r_w`` and runs
``v_w`` queries per second, and all participating workers finish together at the time ``T`` with
``sum over w of v_w * max(0, T - r_w) = q``. ``T`` is the minimum of ``(q + sum v_w r_w) / sum
v_w`` over all sets of workers, which vectorises over many plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from synergai.core.scheduling.rules.active_jobs import water_fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MAX_WORKERS: Final = 6
"""Maximum number of workers in a plan: all their subsets are evaluated."""
_TOGGLED: Final = 4
"""Number of jobs at the front of a plan for which other sets of workers are tried."""
_NEVER: Final = 1e15


@lru_cache(maxsize=MAX_WORKERS)
def _subsets(workers: int) -> Floats:
    """Return one 0/1 row per non-empty set of workers, shape (2**workers - 1, workers)."""
    numbers = np.arange(1, 1 << workers)[:, None]
    return ((numbers >> np.arange(workers)) & 1).astype(np.float64)


@lru_cache(maxsize=64)
def _moves(jobs: int) -> Ints:
    """Return orders with one job put first or two neighbours swapped, shape (moves, jobs)."""
    places = list(range(jobs))
    firsts = [[at, *places[:at], *places[at + 1 :]] for at in places[1:]]
    swaps = [[*places[:at], at + 1, at, *places[at + 2 :]] for at in places[1:-1]]
    return np.array([*firsts, *swaps], dtype=np.int64).reshape(-1, jobs)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the criteria, relative to one late job.

    Attributes:
        sharpness: steepness of the lateness penalty at the deadline. A job that uses exactly the
            remaining time is half late.
        excess: a late job's excess, per typical job time.
        completion: a job's completion, per typical job time.
        effort: a worker's time, per typical job time; saves capacity for jobs yet to come.
    """

    sharpness: float = 10.0
    excess: float = 0.2
    completion: float = 0.1
    effort: float = 0.01


@dataclass(frozen=True, slots=True)
class Problem:
    """Jobs and workers as arrays; times are seconds from now.

    Attributes:
        queries: queries per job, shape (jobs,).
        deadlines: shape (jobs,); may be infinite or negative.
        importance: weight of each job, shape (jobs,).
        ready: when each worker is free, shape (workers,).
        setup: setup of each job on each worker, shape (jobs, workers).
        rates: queries per second, shape (jobs, workers); 0 where a job cannot run.
        saved: setup saved if the job is the worker's first because it already runs there; shape
            (jobs, workers).
        not_before: when each job's already running part ends, shape (jobs,).
        typical_s: typical job time; the unit in which times are weighted.
        prices: cost of a second of each worker, shape (jobs, workers); None for 1 everywhere.
    """

    queries: Floats
    deadlines: Floats
    importance: Floats
    ready: Floats
    setup: Floats
    rates: Floats
    saved: Floats
    not_before: Floats
    typical_s: float
    prices: Floats | None = None


class Plan(NamedTuple):
    """An order of jobs and the workers that each may use.

    Attributes:
        allowed: by job number, shape (jobs, workers).
        cost: total cost; lower is better.
    """

    order: Ints
    allowed: NDArray[np.bool_]
    cost: float


class Allocation(NamedTuple):
    """The part of a job that a plan assigns to a worker."""

    job: int
    worker: int
    begins: float
    queries: float
    completes: float


class Planner:
    """Local search for a plan; `effort` is about the number of water-filling steps."""

    def __init__(self, problem: Problem, weights: Weights, effort: int) -> None:
        self._problem = problem
        self._weights = weights
        self._jobs, self._workers = problem.rates.shape
        self._rounds = max(1, effort // self._jobs)
        self._able = problem.rates > 0
        self._any_saved = bool(problem.saved.any())
        prices = () if problem.prices is None else (problem.prices,)
        self._tables = np.concatenate(
            [problem.rates, problem.setup, problem.saved, *prices], axis=1
        )
        self._subsets = _subsets(self._workers)

    def search(self, starts: Sequence[Sequence[int]]) -> Plan:
        """Return the best plan near the best of the orders in `starts`; each is a permutation."""
        able = self._able
        candidates = np.array(starts, dtype=np.int64)
        best = self._best(candidates, np.broadcast_to(able, (len(candidates), *able.shape)))
        for _ in range(self._rounds):
            orders, allowed = self._neighbours(best)
            if not len(orders):
                break
            better = self._best(orders, allowed)
            if better.cost >= best.cost - 1e-9:
                break
            best = better
        return best

    def _best(self, orders: Ints, allowed: NDArray[np.bool_]) -> Plan:
        costs = self._costs(orders, allowed)
        at = int(costs.argmin())
        return Plan(orders[at], allowed[at], float(costs[at]))

    def _neighbours(self, plan: Plan) -> tuple[Ints, NDArray[np.bool_]]:
        """Return plans with one job moved, or one worker toggled for one job."""
        moved = plan.order[_moves(self._jobs)]
        able, used = self._able.tolist(), plan.allowed.tolist()
        toggled = [
            (job, worker)
            for job in plan.order[:_TOGGLED].tolist()
            for worker in range(self._workers)
            if able[job][worker] and not (used[job][worker] and sum(used[job]) == 1)
        ]
        orders = np.concatenate([moved, np.repeat(plan.order[None], len(toggled), axis=0)])
        allowed = np.repeat(plan.allowed[None], len(orders), axis=0)
        if toggled:
            jobs, workers = zip(*toggled, strict=True)
            allowed[np.arange(len(moved), len(orders)), jobs, workers] ^= True
        return orders, allowed

    def _costs(self, orders: Ints, allowed: NDArray[np.bool_]) -> Floats:
        """Return the cost of every plan; arguments of shapes (plans, jobs), (plans, jobs, workers).

        Internally plans are the last axis: numpy reduces fastest over the first.
        """
        problem, subsets = self._problem, self._subsets
        plans, workers = len(orders), self._workers
        tables = self._tables[orders].transpose(1, 2, 0)
        use = allowed[np.arange(plans)[:, None], orders].transpose(1, 2, 0)
        # Contiguous, which halves the cost of the sums over it.
        rates = np.ascontiguousarray(tables[:, :workers] * use)
        setup = np.ascontiguousarray(np.where(use, tables[:, workers : 2 * workers], _NEVER))
        saved = tables[:, 2 * workers : 3 * workers] if self._any_saved else None
        prices = tables[:, 3 * workers :] if problem.prices is not None else None
        queries = problem.queries[orders.T]
        total_rates = subsets @ rates
        start = problem.ready[:, None]
        free = np.repeat(start, plans, axis=1)
        completes = np.empty((self._jobs, plans))
        effort = np.zeros(plans)
        with np.errstate(divide="ignore"):
            for at in range(self._jobs):
                ready = free + setup[at]
                if saved is not None:
                    ready -= saved[at] * (free == start)
                work = subsets @ (rates[at] * ready)
                work += queries[at]
                work /= total_rates[at]
                until = completes[at]
                np.minimum.reduce(work, axis=0, out=until)
                used = ready < until
                if prices is not None:
                    effort += ((until - free) * prices[at] * used).sum(axis=0)
                np.copyto(free, until, where=used)
        if prices is None:
            effort = free.sum(axis=0)
        return self._plan_costs(orders, completes.T, effort)

    def _plan_costs(self, orders: Ints, completes: Floats, effort: Floats) -> Floats:
        problem, weights = self._problem, self._weights
        costs = plan_cost(
            np.maximum(completes, problem.not_before[orders]),
            problem.deadlines[orders],
            problem.importance[orders],
            weights,
            problem.typical_s,
        )
        costs += weights.effort * effort / problem.typical_s
        return costs

    def allocations(self, plan: Plan) -> list[Allocation]:
        """Return the plan's allocations, in its order of jobs."""
        problem = self._problem
        allowed, saved = plan.allowed.tolist(), problem.saved.tolist()
        setup, rates = problem.setup.tolist(), problem.rates.tolist()
        untouched: list[float] = problem.ready.tolist()
        free = list(untouched)
        found: list[Allocation] = []
        for job in plan.order.tolist():
            ready = []
            for worker, may in enumerate(allowed[job]):
                if may:
                    at = free[worker] + setup[job][worker]
                    at -= saved[job][worker] if free[worker] == untouched[worker] else 0.0
                    ready.append((at, worker))
            ready.sort()
            until = water_fill(float(problem.queries[job]), ready, rates[job])
            for at, worker in ready:
                if at < until:
                    queries = (until - at) * rates[job][worker]
                    found.append(Allocation(job, worker, free[worker], queries, until))
                    free[worker] = until
        return found


def plan_cost(
    completes: Floats, deadlines: Floats, importance: Floats, weights: Weights, typical_s: float
) -> Floats:
    """Return the cost of completing jobs at these times, shape (...) for (..., jobs)."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # Soft lateness: one half if exactly the remaining time is used.
        late = 1.0 / (1.0 + (np.maximum(deadlines, 0.0) / completes) ** weights.sharpness)
    excess = np.maximum(completes - deadlines, 0.0)
    second = weights.excess * excess + weights.completion * completes
    costs: Floats = (importance * (late + second / typical_s)).sum(axis=-1)
    return costs
