"""Plans for divisible jobs: who runs what share of which job, one job after the other.

A plan is an order of jobs and, for each, the workers that it may be split over. Each job in
turn is poured over its workers like water: worker ``w`` is ready for it at ``r_w`` and runs
``v_w`` queries per second, and all workers that take part finish together at the instant ``T``
with ``sum over w of v_w * max(0, T - r_w) = q``. ``T`` is the least ``(q + sum v_w r_w) / sum
v_w`` over all sets of workers, which makes it cheap to pour many plans at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MAX_WORKERS: Final = 6
"""A plan knows that many workers at most: all their subsets are looked at."""
_TOGGLED: Final = 4
"""For how many jobs, the first of a plan, other sets of workers are tried."""
_NEVER: Final = 1e15


@lru_cache(maxsize=MAX_WORKERS)
def _subsets(workers: int) -> Floats:
    """One row per set of workers that is not empty."""
    numbers = np.arange(1, 1 << workers)[:, None]
    return ((numbers >> np.arange(workers)) & 1).astype(np.float64)


@lru_cache(maxsize=64)
def _moves(jobs: int) -> Ints:
    """One row per way to put one of so many jobs first, or to swap two neighbours."""
    places = list(range(jobs))
    firsts = [[at, *places[:at], *places[at + 1 :]] for at in places[1:]]
    swaps = [[*places[:at], at + 1, at, *places[at + 2 :]] for at in places[1:-1]]
    return np.array([*firsts, *swaps], dtype=np.int64).reshape(-1, jobs)


@dataclass(frozen=True, slots=True)
class Weights:
    """What the second and third criteria count against a late job.

    Attributes:
        sharpness: how suddenly a job counts as late near its deadline. A plan that uses up all
            the time that is left is as good as late by half.
        excess: a late job's excess, per typical job time.
        completion: a job's completion, per typical job time.
        effort: a worker's time, per typical job time; saves it for jobs that are still to come.
    """

    sharpness: float = 10.0
    excess: float = 0.15
    completion: float = 0.1
    effort: float = 0.01


@dataclass(frozen=True, slots=True)
class Problem:
    """Jobs and workers as arrays; times are seconds from now.

    Attributes:
        queries: of each job, shape (jobs,).
        deadlines: shape (jobs,), maybe infinite or negative.
        importance: what each job counts, shape (jobs,).
        ready: when each worker is free, shape (workers,).
        setup: of each job on each worker, shape (jobs, workers).
        rates: queries per second, shape (jobs, workers); 0 where a job cannot run.
        saved: setup that is not to be paid if the job is the worker's first, as it is running
            there; shape (jobs, workers).
        not_before: when what already runs of each job is over, shape (jobs,).
        prices: what a second of each worker costs, shape (jobs, workers); None is 1 for all.
        typical_s: what a job typically takes; the unit in which times are judged.
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
        order: the jobs' numbers, shape (jobs,).
        allowed: by job number, shape (jobs, workers).
        cost: what the plan amounts to; lower is better.
    """

    order: Ints
    allowed: NDArray[np.bool_]
    cost: float


class Share(NamedTuple):
    """A job's part that a plan gives to a worker."""

    job: int
    worker: int
    begins: float
    queries: float


class Planner:
    """Searches for a plan by pouring many at a time.

    Args:
        problem: what is to be planned.
        weights: what counts how much.
        effort: about how many jobs may be poured one after the other; bounds the time.
    """

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
        """The best plan near the best of the orders in `starts`; each has every job once."""
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
        """Plans that differ a little: a job first or next, a worker less or more for a job."""
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
        """Pour every plan; shapes (plans, jobs) and (plans, jobs, workers).

        Inside, plans come last: sums and minima over the first axis are what numpy is best at.
        """
        problem, subsets = self._problem, self._subsets
        plans, workers = len(orders), self._workers
        tables = self._tables[orders].transpose(1, 2, 0)
        use = allowed[np.arange(plans)[:, None], orders].transpose(1, 2, 0)
        # In one piece, which makes the sums over it half as dear.
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
        return self._judge(orders, completes.T, effort)

    def _judge(self, orders: Ints, completes: Floats, effort: Floats) -> Floats:
        problem, weights = self._problem, self._weights
        costs = judge(
            np.maximum(completes, problem.not_before[orders]),
            problem.deadlines[orders],
            problem.importance[orders],
            weights,
            problem.typical_s,
        )
        costs += weights.effort * effort / problem.typical_s
        return costs

    def shares(self, plan: Plan) -> list[Share]:
        """Who runs how much of what, in the plan's order."""
        problem = self._problem
        allowed, saved = plan.allowed.tolist(), problem.saved.tolist()
        setup, rates = problem.setup.tolist(), problem.rates.tolist()
        untouched: list[float] = problem.ready.tolist()
        free = list(untouched)
        found: list[Share] = []
        for job in plan.order.tolist():
            ready = []
            for worker, may in enumerate(allowed[job]):
                if may:
                    at = free[worker] + setup[job][worker]
                    at -= saved[job][worker] if free[worker] == untouched[worker] else 0.0
                    ready.append((at, worker))
            ready.sort()
            until = pour(float(problem.queries[job]), ready, rates[job])
            for at, worker in ready:
                if at < until:
                    queries = (until - at) * rates[job][worker]
                    found.append(Share(job, worker, free[worker], queries))
                    free[worker] = until
        return found


def judge(
    completes: Floats, deadlines: Floats, importance: Floats, weights: Weights, typical_s: float
) -> Floats:
    """What completing jobs at these times costs; arrays of the shape (..., jobs)."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # The chance to be late: one half if all of the time that is left is used up.
        late = 1.0 / (1.0 + (np.maximum(deadlines, 0.0) / completes) ** weights.sharpness)
    excess = np.maximum(completes - deadlines, 0.0)
    second = weights.excess * excess + weights.completion * completes
    costs: Floats = (importance * (late + second / typical_s)).sum(axis=-1)
    return costs


def pour(queries: float, ready: Sequence[tuple[float, int]], rates: Sequence[float]) -> float:
    """When all workers that take part are through with `queries`, if they finish together.

    Args:
        queries: how many.
        ready: when each worker could begin, and its number; the soonest first.
        rates: queries per second by worker's number; positive for all that are in `ready`.
    """
    total_rate = work = 0.0
    until = math.inf
    for at, worker in ready:
        if at >= until:
            break
        total_rate += rates[worker]
        work += rates[worker] * at
        until = (queries + work) / total_rate
    return until
