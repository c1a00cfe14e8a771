"""Plans on machines whose workers slow each other down: jobs at once, or one after the other.

Water-filling knows no contention. Where engines are known to slow each other down, the plan that it
found is compared with others: the first jobs run over all workers in turn, or each on a worker of
its own. All of them are played through with the slow-downs, as is what continues to run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from synergai.core.scheduling.policies.malleable.planner import Plan, plan_cost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from synergai.core.scheduling.policies.malleable.planner import Floats, Problem, Weights

NOTICED: Final = 1.1
"""Slow-down from which on plans are compared."""
SHORT_S: Final = 0.1
"""Time for which a worker does not wait: it helps at once."""
_APART: Final = 2
"""Jobs that are tried on workers of their own."""
_ORDERS: Final = 3


class Running(NamedTuple):
    """What continues to run on a worker: a job, and the seconds that it would take alone."""

    job: int
    alone_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contended:
    """What workers do to each other.

    Attributes:
        slowdowns: factor by which a job takes longer while another one runs, shape (jobs, jobs).
            The jobs of the problem come first, then jobs that only continue.
        mates: the other workers of each worker's machine, by number.
        deadlines: of all of these jobs, like the next two.
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
    """Return when each job completes, those that only continue included, and workers' busy time.

    A free worker runs the first job in order that it is allowed to run, or else helps the first one
    that is faster with it. The last result is who is allowed to run what, with the helpers that are
    not idle before: the others are meant to wait.
    """
    return _Play(problem, contended, order, allowed).play()


class _Play:
    """Jobs that are played through on workers which slow each other down; `play` says how."""

    def __init__(
        self,
        problem: Problem,
        contended: Contended,
        order: Sequence[int],
        allowed: Sequence[Sequence[bool]],
    ) -> None:
        self._contended = contended
        self._order, self._allowed = order, allowed
        self._rates, self._setup = problem.rates.tolist(), problem.setup.tolist()
        self._saved, self._slowdowns = problem.saved.tolist(), contended.slowdowns.tolist()
        self._left, self._ready = problem.queries.tolist(), problem.ready.tolist()
        self._first_ready = problem.ready.tolist()
        self._goes_on = {worker: each.alone_s for worker, each in contended.running.items()}
        for worker in self._goes_on:
            self._ready[worker] = 0.0
        self._workers = range(len(self._ready))
        self._running: list[int | None] = [None] * len(self._ready)
        self._begins = list(self._ready)
        self._completes = np.zeros(len(self._slowdowns))
        self._completes[: len(self._left)] = math.inf
        self._now = 0.0
        self._used = [list(row) for row in allowed]
        self._idle_since: dict[int, float] = {}

    def play(self) -> tuple[Floats, float, list[list[bool]]]:
        """Play from one change to the next, until there is none."""
        effort_s = 0.0
        while True:
            self._start_jobs()
            engines = self._engines()
            paces = self._paces(engines)
            speeds = self._speeds(paces)
            now = self._now
            ends = {job: now + self._left[job] / speed for job, speed in enumerate(speeds) if speed}
            stops = {
                worker: now + alone_s / paces[worker] for worker, alone_s in self._goes_on.items()
            }
            instants = [*ends.values(), *stops.values()]
            instants += [begin for begin in self._begins if begin > now]
            instants += [ready for ready in self._ready if ready > now]
            if not instants:
                return self._completes, effort_s, self._used
            until = min(instants)
            effort_s += sum(engine is not None for engine in engines) * (until - now)
            self._advance(until, paces, speeds, ends, stops)

    def _start_jobs(self) -> None:
        now = self._now
        for worker in self._workers:
            idle = worker not in self._goes_on and self._running[worker] is None
            if idle and self._ready[worker] <= now:
                self._running[worker] = job = self._choose(worker)
                if job is not None:
                    is_first = self._ready[worker] == self._first_ready[worker]
                    self._begins[worker] = now + self._setup[job][worker]
                    self._begins[worker] -= self._saved[job][worker] if is_first else 0.0

    def _choose(self, worker: int) -> int | None:
        able = [job for job in self._order if self._left[job] > 0 and self._rates[job][worker] > 0]
        for job in able:
            if self._allowed[job][worker]:
                return job
        for job in able:
            others = self._running.count(job)
            if others and self._slowdowns[job][job] < 1 + 1 / others:
                idle_s = self._now - self._idle_since.get(worker, self._now)
                self._used[job][worker] |= idle_s <= SHORT_S
                return job
        self._idle_since.setdefault(worker, self._now)
        return None

    def _engines(self) -> list[int | None]:
        """Return what each worker computes, as the number of a job."""
        going, running = self._contended.running, self._running
        return [going[w].job if w in self._goes_on else running[w] for w in self._workers]

    def _paces(self, engines: Sequence[int | None]) -> list[float]:
        """Return how fast each worker is while the others of its machine compute."""
        slowdowns, mates = self._slowdowns, self._contended.mates
        return [
            math.prod(
                1 / slowdowns[engine][other]
                for mate in mates[worker]
                if (other := engines[mate]) is not None
            )
            if (engine := engines[worker]) is not None
            else 0.0
            for worker in self._workers
        ]

    def _speeds(self, paces: Sequence[float]) -> list[float]:
        speeds = [0.0] * len(self._left)
        for worker, job in enumerate(self._running):
            if job is not None and self._begins[worker] <= self._now:
                speeds[job] += self._rates[job][worker] * paces[worker]
        return speeds

    def _advance(
        self,
        until: float,
        paces: Sequence[float],
        speeds: Sequence[float],
        ends: Mapping[int, float],
        stops: Mapping[int, float],
    ) -> None:
        # Compared are instants: what rounding leaves of long work would not advance the time.
        passed_s = until - self._now
        for worker in list(self._goes_on):
            self._goes_on[worker] -= paces[worker] * passed_s
            if stops[worker] <= until:
                del self._goes_on[worker]
                self._ready[worker] = until
                job = self._contended.running[worker].job
                if job >= len(self._left) or self._completes[job] < math.inf:
                    self._completes[job] = max(self._completes[job], until)
        for job, speed in enumerate(speeds):
            self._left[job] -= speed * passed_s
            if speed and ends[job] <= until:
                self._left[job] = 0.0
                self._completes[job] = until
                for worker in self._workers:
                    if self._running[worker] == job:
                        self._running[worker], self._ready[worker] = None, until
        self._now = until
