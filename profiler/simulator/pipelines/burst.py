"""A burst of one engine among many, after AlpaServe (Li et al., OSDI 2023), in virtual time.

Not all engines fit on each worker. Whole, an engine has sessions on one or two workers, and a burst
of it can use these only. Cut into stages, every engine has a part on each worker, and a burst can
use them all. The rate of the burst is raised as long as enough queries end in time.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from profiler.simulator.pipelines.interference import best_route
from profiler.simulator.pipelines.measured_chains import WORKERS, pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENGINES: Final = 8
LOAD_S: Final = 0.3
"""Time to create a session of the network, as measured."""
SECONDS: Final = 20.0
DEADLINE: Final = 5.0
"""In times of what a query takes alone."""
BACKGROUND: Final = 0.1
"""Share of all workers that the other engines take."""
IN_TIME: Final = 0.99
_HALVINGS: Final = 9


class Visit(NamedTuple):
    """What a query does at a worker, and the hop behind it."""

    worker: int
    seconds: float
    hop_s: float


Dispatch: TypeAlias = Callable[[int, float, "Sequence[float]"], list[Visit]]
"""Returns the visits of a query by its engine, the time, and when each worker will be free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstResult:
    """The highest rate of a burst at which enough of all queries end in time.

    Attributes:
        rate: its queries per second.
    """

    placement: str
    engine: int
    seed: int
    rate: float


class BurstCase:
    """Engines of one network, on workers that have just the memory for the stages of all.

    Attributes:
        whole_s: time of a query of the whole engine.
        legs: seconds of each leg of a route over all workers, and of the hop behind it.
        memory_bytes: memory of each worker.
        sessions: number of whole engines on each worker, rounded up in their favour.
    """

    def __init__(self) -> None:
        problem = pipeline()
        route = best_route(problem, {})
        times = problem.times(route)
        inputs, *hops = times.hops
        self.inputs_s, self.outputs_s = inputs.seconds, hops[-1].seconds
        self.whole_s = problem.workers[0].seconds[0][-1]
        self.legs = list(zip(times.stages, (hop.seconds for hop in hops), strict=True))
        # Each leg of the route is on each worker for as many engines.
        stages = sum(problem.memory_bytes(leg.first, leg.last) for leg in route.legs)
        self.memory_bytes = stages * ENGINES / WORKERS
        self.sessions = math.ceil(self.memory_bytes / problem.memory_bytes(0, problem.chain.end))

    def replicas(self) -> list[list[int]]:
        """Return the engines with a session on each worker, as evenly as possible."""
        sessions: list[list[int]] = [[] for _ in range(WORKERS)]
        for slot in range(self.sessions * WORKERS):
            # Further sessions of an engine are on other workers.
            further, engine = divmod(slot, ENGINES)
            sessions[(engine + further) % WORKERS].append(engine)
        return sessions

    def whole(self) -> Dispatch:
        """Queries go to the session that ends them first; sessions stay where they are."""
        sessions = self.replicas()
        able = [[w for w in range(WORKERS) if engine in sessions[w]] for engine in range(ENGINES)]

        return lambda engine, _now, free: [
            Visit(min(able[engine], key=free.__getitem__), self.whole_s, self.outputs_s)
        ]

    def loading(self) -> Dispatch:
        """Queries go where they end first, where a session may be created in place of another."""
        sessions = self.replicas()

        def dispatch(engine: int, now: float, free: Sequence[float]) -> list[Visit]:
            def seconds(worker: int) -> float:
                return self.whole_s if engine in sessions[worker] else LOAD_S + self.whole_s

            worker = min(range(WORKERS), key=lambda each: max(now, free[each]) + seconds(each))
            visit = Visit(worker, seconds(worker), self.outputs_s)
            # The last one is the one that was used last.
            used = sessions[worker]
            used.remove(engine if engine in used else used[0])
            used.append(engine)
            return [visit]

        return dispatch

    def stages(self) -> Dispatch:
        """Queries pass all workers; the routes of engines begin at different ones."""
        return lambda engine, _now, _free: [
            Visit((engine + number) % WORKERS, *leg) for number, leg in enumerate(self.legs)
        ]


PLACEMENTS: Final[dict[str, Callable[[BurstCase], Dispatch]]] = {
    "whole": BurstCase.whole,
    "loading": BurstCase.loading,
    "stages": BurstCase.stages,
}


def compare(seeds: Sequence[int]) -> Iterator[BurstResult]:
    """Find the highest rate of a burst of each engine under each placement."""
    case = BurstCase()
    for placement, dispatch in PLACEMENTS.items():
        for engine in range(ENGINES):
            for seed in seeds:
                low, high = 0.0, 2 * WORKERS / case.whole_s
                for _ in range(_HALVINGS):
                    rate = (low + high) / 2
                    if share_in_time(case, dispatch(case), engine, rate, seed) >= IN_TIME:
                        low = rate
                    else:
                        high = rate
                yield BurstResult(placement=placement, engine=engine, seed=seed, rate=low)


def run_count(seeds: Sequence[int]) -> int:
    return len(PLACEMENTS) * ENGINES * len(seeds)


def tables(results: Sequence[BurstResult]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Yield columns and rows of the means over seeds of mean and lowest rates over engines."""
    rows = []
    for placement in PLACEMENTS:
        by_seed: dict[int, list[float]] = {}
        for each in results:
            if each.placement == placement:
                by_seed.setdefault(each.seed, []).append(each.rate)
        rates = by_seed.values()
        means = statistics.fmean(map(statistics.fmean, rates)), statistics.fmean(map(min, rates))
        rows.append([placement, *(f"{mean:.1f}" for mean in means)])
    yield ("placement", "queries per second, mean", "lowest"), rows


def share_in_time(case: BurstCase, dispatch: Dispatch, burst: int, rate: float, seed: int) -> float:
    """Return the share of the queries that end in time while one engine has a burst."""
    generator = np.random.default_rng(seed)
    others = BACKGROUND * WORKERS / case.whole_s / (ENGINES - 1)
    rates = [rate if engine == burst else others for engine in range(ENGINES)]
    arrivals = [
        (float(at), engine)
        for engine, of_engine in enumerate(rates)
        for at in generator.uniform(0, SECONDS, size=generator.poisson(of_engine * SECONDS))
    ]
    budget_s = DEADLINE * case.whole_s - case.inputs_s
    ends = run(arrivals, dispatch)
    in_time = sum(end - at <= budget_s for (at, _), end in zip(arrivals, ends, strict=True))
    return in_time / len(arrivals) if arrivals else 1.0


def run(arrivals: Sequence[tuple[float, int]], dispatch: Dispatch) -> list[float]:
    """Return when each query ends; a worker runs one at a time, in the order of their arrivals."""
    free = [0.0] * WORKERS
    ends = [0.0] * len(arrivals)
    left: dict[int, list[Visit]] = {}
    ready = [(at, number) for number, (at, _) in enumerate(arrivals)]
    heapq.heapify(ready)
    while ready:
        now, number = heapq.heappop(ready)
        if number not in left:
            left[number] = dispatch(arrivals[number][1], now, free)
        worker, seconds, hop_s = left[number].pop(0)
        free[worker] = max(now, free[worker]) + seconds
        ends[number] = free[worker] + hop_s
        if left[number]:
            heapq.heappush(ready, (ends[number], number))
    return ends
