"""Plans on machines whose workers slow each other down: jobs at once, or one after the other.

Water-filling knows no contention. Where engines are known to slow each other down, the plan that it
found is compared with others: the first jobs run over all workers in turn, or each on a worker of
its own. All of them are played through with the slow-downs, as is what goes on running.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from synergai.scheduling.policies.malleable.planner import Plan, plan_cost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from synergai.scheduling.policies.malleable.planner import Floats, Problem, Weights

NOTICED: Final = 1.1
"""Slow-down from which on plans are compared."""
SHORT_S: Final = 0.1
"""Time for which a worker does not wait: it helps at once."""
_APART: Final = 2
"""Jobs that are tried on workers of their own."""
_ORDERS: Final = 3


class Running(NamedTuple):
    """What goes on running on a worker: a job, and the seconds that it would take alone."""

    job: int
    alone_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """What workers do to each other.

    Attributes:
        slowdowns: by which each job takes longer beside another one, shape (jobs, jobs). Those of
            the problem come first, then those that only go on running.
        mates: the other workers of each worker's machine, by number.
        running: by worker.
        deadlines: of all of these jobs, like the next two.
        importance: weights.
        not_before: when what else runs of each job ends.
    """

    slowdowns: Floats
    mates: Sequence[Sequence[int]]
    running: Mapping[int, Running]
    deadlines: Floats
    importance: Floats
    not_before: Floats

    @property
    def is_noticed(self) -> bool:
        """Whether it matters."""
        return any(self.mates) and float(self.slowdowns.max(initial=1.0)) >= NOTICED


def choose_plan(
    problem: Problem,
    contended: Contended,
    weights: Weights,
    plan: Plan,
    starts: Sequence[Sequence[int]],
) -> Plan:
    """Return the best of a plan and others; the cost is that of all jobs, in view of contention."""
    best: Plan | None = None
    for order, allowed in _candidates(problem, plan, starts):
        completes, effort_s, used = play(problem, contended, order, allowed)
        cost = float(
            plan_cost(
                np.maximum(completes, contended.not_before),
                contended.deadlines,
                contended.importance,
                weights,
                problem.typical_s,
            )
        )
        cost += weights.effort * effort_s / problem.typical_s
        if best is None or cost < best.cost - 1e-9:
            best = Plan(np.array(order), np.array(used), cost)
    return plan if best is None else best


def _candidates(
    problem: Problem, plan: Plan, starts: Sequence[Sequence[int]]
) -> Iterator[tuple[Sequence[int], list[list[bool]]]]:
    able = (problem.rates > 0).tolist()
    orders = [tuple(plan.order.tolist()), *map(tuple, starts)]
    yield orders[0], able
    yield orders[0], plan.allowed.tolist()
    for order in list(dict.fromkeys(orders))[:_ORDERS]:
        yield order, able
        first = order[:_APART]
        for workers in product(*(np.flatnonzero(able[job]).tolist() for job in first)):
            allowed = [list(row) for row in able]
            for job, worker in zip(first, workers, strict=True):
                allowed[job] = [number == worker for number in range(len(able[job]))]
            yield order, allowed


def play(
    problem: Problem,
    contended: Contended,
    order: Sequence[int],
    allowed: Sequence[Sequence[bool]],
) -> tuple[Floats, float, list[list[bool]]]:
    """Return when each job completes, those included that only go on, and the workers' busy time.

    A free worker runs the first job in order that it is allowed to run, or else helps the first one
    that is faster with it. The last result is who is allowed to run what, with the helpers that are
    not idle before: the others are meant to wait.
    """
    rates, setup = problem.rates.tolist(), problem.setup.tolist()
    saved, slowdowns = problem.saved.tolist(), contended.slowdowns.tolist()
    left, ready = problem.queries.tolist(), problem.ready.tolist()
    goes_on = {worker: each.alone_s for worker, each in contended.running.items()}
    for worker in goes_on:
        ready[worker] = 0.0
    workers = range(len(ready))
    running: list[int | None] = [None] * len(ready)
    begins = list(ready)
    completes = np.zeros(len(slowdowns))
    completes[: len(left)] = math.inf
    now = effort_s = 0.0
    used = [list(row) for row in allowed]
    idle_since: dict[int, float] = {}

    def choose(worker: int) -> int | None:
        able = [job for job in order if left[job] > 0 and rates[job][worker] > 0]
        for job in able:
            if allowed[job][worker]:
                return job
        for job in able:
            others = running.count(job)
            if others and slowdowns[job][job] < 1 + 1 / others:
                used[job][worker] |= now - idle_since.get(worker, now) <= SHORT_S
                return job
        idle_since.setdefault(worker, now)
        return None

    while True:
        for worker in workers:
            if worker not in goes_on and running[worker] is None and ready[worker] <= now:
                running[worker] = job = choose(worker)
                if job is not None:
                    is_first = ready[worker] == problem.ready[worker]
                    begins[worker] = now + setup[job][worker]
                    begins[worker] -= saved[job][worker] if is_first else 0.0
        engines = [
            contended.running[worker].job if worker in goes_on else running[worker]
            for worker in workers
        ]
        paces = [
            math.prod(
                1 / slowdowns[engine][other]
                for mate in contended.mates[worker]
                if (other := engines[mate]) is not None
            )
            if (engine := engines[worker]) is not None
            else 0.0
            for worker in workers
        ]
        speeds = [0.0] * len(left)
        for worker in workers:
            job = running[worker]
            if job is not None and begins[worker] <= now:
                speeds[job] += rates[job][worker] * paces[worker]
        ends = {job: now + left[job] / speed for job, speed in enumerate(speeds) if speed}
        stops = {worker: now + alone_s / paces[worker] for worker, alone_s in goes_on.items()}
        instants = [*ends.values(), *stops.values()]
        instants += [begins[worker] for worker in workers if begins[worker] > now]
        instants += [ready[worker] for worker in workers if ready[worker] > now]
        if not instants:
            return completes, effort_s, used
        until = min(instants)
        effort_s += sum(engine is not None for engine in engines) * (until - now)
        # Compared below are instants: what rounding leaves of long work would not advance the time.
        for worker in list(goes_on):
            goes_on[worker] -= paces[worker] * (until - now)
            if stops[worker] <= until:
                del goes_on[worker]
                ready[worker] = until
                job = contended.running[worker].job
                if job >= len(left) or completes[job] < math.inf:
                    completes[job] = max(completes[job], until)
        for job, speed in enumerate(speeds):
            left[job] -= speed * (until - now)
            if speed and ends[job] <= until:
                left[job] = 0.0
                completes[job] = until
                for worker in workers:
                    if running[worker] == job:
                        running[worker], ready[worker] = None, until
        now = until
