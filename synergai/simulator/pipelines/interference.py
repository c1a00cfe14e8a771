"""Interference on a running pipeline, after ODIN (Soomro et al., Euro-Par 2023), in virtual time.

Other work slows workers down for a while. Whoever balances the pipeline sees the times of its
stages only, and changes the route of the queries that enter later.
"""

from __future__ import annotations

import heapq
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from synergai.domain import EngineName
from synergai.routes.links import Link, Links
from synergai.routes.odin import LeastLoaded, Odin
from synergai.routes.problem import Route, RouteProblem, RouteWorker
from synergai.simulator.pipelines.balancers import (
    Balancer,
    Fixed,
    Planning,
    Searching,
    best_route,
)
from synergai.simulator.pipelines.measured_chains import measured_chains

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WORKERS: Final = 4
NETWORK: Final = EngineName("onnx_resnet50_op11")
SECONDS: Final = 60.0
WINDOW: Final = 2 * WORKERS
"""Queries that may be in the pipeline at once."""
LOAD: Final = 0.7
"""Rate of arrivals while latencies are measured, as a share of the rate without interference."""


class Slowdown(NamedTuple):
    """What a worker begins in an interval of time takes `factor` times as long."""

    worker: str
    begin_s: float
    end_s: float
    factor: float


class Clairvoyant:
    """Has the best route at any time, from the slow-downs themselves."""

    def __init__(self, problem: RouteProblem, slowdowns: Sequence[Slowdown]) -> None:
        self._problem, self._slowdowns = problem, slowdowns
        self._known: dict[tuple[float, ...], Route] = {}

    def route(self, now: float) -> Route:
        """Return the best route for the slow-downs of this moment."""
        names = [worker.name for worker in self._problem.workers]
        factors = tuple(factor(self._slowdowns, name, now) for name in names)
        if factors not in self._known:
            by_name = dict(zip(names, factors, strict=True))
            self._known[factors] = best_route(self._problem, by_name)
        return self._known[factors]

    def seen(self, _now: float, _route: Route, _stages: Sequence[float]) -> None:
        """Ignore it."""


CLAIRVOYANT: Final = "clairvoyant"
BALANCERS: Final[dict[str, Callable[[RouteProblem, Sequence[Slowdown]], Balancer]]] = {
    "fixed": lambda problem, _: Fixed(problem),
    "lls": lambda problem, _: Searching(problem, LeastLoaded()),
    "odin, alpha 2": lambda problem, _: Searching(problem, Odin("2")),
    "odin, alpha 10": lambda problem, _: Searching(problem, Odin("10")),
    "planning": lambda problem, _: Planning(problem),
    CLAIRVOYANT: Clairvoyant,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceResult:
    """What a pipeline served in one scenario.

    Attributes:
        rate: queries per second, with as many as it takes.
        latency_s: mean time of a query, at a fixed rate.
    """

    balancer: str
    seed: int
    rate: float
    latency_s: float


def compare(seeds: Sequence[int]) -> Iterator[InterferenceResult]:
    """Run each balancer through the same scenarios."""
    problem = pipeline()
    gap_s = problem.times(best_route(problem, {})).interval_s / LOAD
    for seed in seeds:
        slowdowns = drawn_slowdowns(seed, [worker.name for worker in problem.workers])
        for name, balancer in BALANCERS.items():
            rate = len(latencies(problem, slowdowns, balancer(problem, slowdowns))) / SECONDS
            open_loop = latencies(problem, slowdowns, balancer(problem, slowdowns), gap_s)
            yield InterferenceResult(
                balancer=name, seed=seed, rate=rate, latency_s=statistics.fmean(open_loop)
            )


def rows(results: Sequence[InterferenceResult]) -> list[list[str]]:
    """Return the rates as shares of the clairvoyant's, and the mean latencies."""
    best = {each.seed: each.rate for each in results if each.balancer == CLAIRVOYANT}
    table = []
    for name in BALANCERS:
        mine = [each for each in results if each.balancer == name]
        shares = [each.rate / best[each.seed] for each in mine]
        latency_s = statistics.fmean(each.latency_s for each in mine)
        table.append(
            [
                name,
                f"{statistics.fmean(each.rate for each in mine):.1f}",
                f"{statistics.fmean(shares):.1%}",
                f"{min(shares):.1%}",
                f"{1000 * latency_s:.1f}",
            ]
        )
    return table


def pipeline() -> RouteProblem:
    """Return one network over workers that are alike and share their memory, so hops are free."""
    chain, seconds = measured_chains()[NETWORK]
    return RouteProblem(
        chain=chain,
        workers=tuple(RouteWorker(f"w{number}", seconds) for number in range(WORKERS)),
        links=Links({}, default=Link(1e15)),
        queries=1000,
    )


def drawn_slowdowns(seed: int, workers: Sequence[str]) -> list[Slowdown]:
    """Draw slow-downs by 1.3 to 4 for 1 to 10 s, one every 5 s on average."""
    generator = np.random.default_rng(seed)
    found, now = [], 0.0
    while (now := now + generator.exponential(5.0)) < SECONDS:
        worker = workers[int(generator.integers(len(workers)))]
        end_s = now + generator.uniform(1, 10)
        found.append(Slowdown(worker, now, end_s, float(generator.uniform(1.3, 4))))
    return found


def factor(slowdowns: Sequence[Slowdown], worker: str, now: float) -> float:
    """Return how slow a worker is; of several slow-downs at once, the worst counts."""
    factors = (
        each.factor
        for each in slowdowns
        if each.worker == worker and each.begin_s <= now < each.end_s
    )
    return max(factors, default=1.0)


def latencies(
    problem: RouteProblem, slowdowns: Sequence[Slowdown], balancer: Balancer, gap_s: float = 0.0
) -> list[float]:
    """Return the time of each query that ended; a worker runs them in the order of their entry.

    Queries arrive at equal gaps. Without a gap, each one arrives as soon as it may enter.
    """
    seconds = {worker.name: worker.seconds for worker in problem.workers}
    free = dict.fromkeys(seconds, 0.0)
    flying: list[tuple[float, int, Route, list[float]]] = []
    taken: list[float] = []
    now, number = 0.0, 0
    while now < SECONDS:
        arrival = number * gap_s
        now = max(now, arrival)
        while flying and (flying[0][0] <= now or len(flying) == WINDOW):
            end, _, route, stages = heapq.heappop(flying)
            now = max(now, end)
            balancer.seen(end, route, stages)
        route, stages, at = balancer.route(now), [], now
        for worker, first, last in route.legs:
            begin = max(at, free[worker])
            stage_s = seconds[worker][first][last] * factor(slowdowns, worker, begin)
            stages.append(stage_s)
            at = free[worker] = begin + stage_s
        taken.append(at - (arrival if gap_s else now))
        heapq.heappush(flying, (at, number, route, stages))
        number += 1
    return taken
