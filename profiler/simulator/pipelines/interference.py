"""Interference on a running pipeline, after ODIN (Soomro et al., Euro-Par 2023), in virtual time.

Other work slows workers down for a while. Whoever balances the pipeline sees what its stages take
only, and changes the route of the queries that enter later.
"""

from __future__ import annotations

import heapq
import statistics
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from profiler.planning.moves import seconds
from profiler.planning.optimal import optimal_route
from profiler.planning.tuning import lls, odin
from profiler.simulator.pipelines.measured_chains import WORKERS, pipeline
from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import Route, RouteProblem, RouteTimes
from synergai.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from synergai.core.routes.planner import Search


THETA: Final = 0.1
"""Share by which the time of a stage has to change until the pipeline is balanced again."""
IN_A_ROW: Final = 3
"""Queries in a row that have to show it, and queries of a trial."""
LEAST_GAIN: Final = 0.02
FORGET_S: Final = 2.0
"""Time after which a slow worker without queries is expected to be undisturbed again."""


class Balancer(Protocol):
    """Decides over which route queries run."""

    def route(self, now: float) -> Route:
        """Return the route of a query that enters now."""

    def seen(self, now: float, route: Route, times: RouteTimes) -> None:
        """Take notice of what the stages of a query took that ended now."""


class Searching:
    """Starts an online search when the time of a stage has changed.

    The queries of a trial are served like all others.
    """

    def __init__(self, problem: RouteProblem, planner: Callable[[RouteProblem], Search]) -> None:
        self._problem, self._planner = problem, planner
        self._route = best_route(problem, {})
        self._search: Search | None = None
        self._reference: Sequence[float] | None = None
        self._recent: deque[Sequence[float]] = deque(maxlen=IN_A_ROW)

    def route(self, _now: float) -> Route:
        """Return the route that is tried, or the best of the last search."""
        return self._route

    def seen(self, _now: float, route: Route, times: RouteTimes) -> None:
        """Search if the times of a stage have changed, or answer the trial of a search."""
        if route != self._route:
            return
        self._recent.append(times.stages)
        if len(self._recent) < IN_A_ROW:
            return
        means = tuple(map(float, np.mean(self._recent, axis=0)))
        if self._search is not None:
            self._try(self._search, means)
        elif self._reference is None:
            self._reference = means
        elif self._has_changed(self._reference):
            self._search = self._planner(replace(self._problem, current=self._route))
            self._use(next(self._search))

    def _has_changed(self, reference: Sequence[float]) -> bool:
        changes = np.abs(np.array(self._recent) / reference - 1)
        return bool((changes > THETA).all(axis=0).any())

    def _try(self, search: Search, stages: tuple[float, ...]) -> None:
        """Give the search what a route took, and run the next one."""
        hops = self._problem.times(self._route).hops
        try:
            self._use(search.send(RouteTimes(stages, hops)))
        except StopIteration as end:
            self._search = None
            self._use(end.value)

    def _use(self, route: Route) -> None:
        self._route = route
        self._reference = None
        self._recent.clear()


class Planning:
    """Learns how slow workers are, and plans anew when that has changed.

    A worker that no query passes shows nothing, so its slow-down is forgotten after a while.
    """

    def __init__(self, problem: RouteProblem) -> None:
        self._problem = problem
        self._route = best_route(problem, {})
        self._factors: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._idle_since: dict[str, float] = {}

    def route(self, now: float) -> Route:
        """Return the best route by what is known of the workers."""
        forgotten = [name for name, since in self._idle_since.items() if now - since > FORGET_S]
        for name in forgotten:
            del self._idle_since[name], self._factors[name]
        if forgotten:
            self._plan(now)
        return self._route

    def seen(self, now: float, route: Route, times: RouteTimes) -> None:
        """Learn how slow the workers of the route are, and plan if that has changed."""
        has_changed = False
        expected = self._problem.times(route).stages
        for leg, taken_s, expected_s in zip(route.legs, times.stages, expected, strict=True):
            recent = self._recent.setdefault(leg.worker, deque(maxlen=IN_A_ROW))
            recent.append(taken_s / expected_s)
            known = self._factors.get(leg.worker, 1.0)
            if len(recent) == IN_A_ROW and min(abs(each / known - 1) for each in recent) > THETA:
                self._factors[leg.worker] = sum(recent) / IN_A_ROW
                has_changed = True
        if has_changed:
            self._plan(now)

    def _plan(self, now: float) -> None:
        """Take the best route, if that is worth a change."""
        problem = slowed(self._problem, self._factors)
        best = best_route(self._problem, self._factors)
        if seconds(problem, best) < (1 - LEAST_GAIN) * seconds(problem, self._route):
            self._route = best
        used = {leg.worker for leg in self._route.legs}
        self._idle_since = {
            name: self._idle_since.get(name, now) for name in self._factors if name not in used
        }


def best_route(problem: RouteProblem, factors: Mapping[str, float]) -> Route:
    """Return the best route while some workers take `factors` times as long."""
    route = optimal_route(slowed(problem, factors))
    if route is None:
        raise InternalError("no route over workers of unlimited memory")
    return route


def slowed(problem: RouteProblem, factors: Mapping[str, float]) -> RouteProblem:
    """Return the problem while some workers take `factors` times as long."""
    workers = tuple(
        replace(
            worker,
            seconds=tuple(
                tuple(factors.get(worker.name, 1.0) * each for each in row)
                for row in worker.seconds
            ),
        )
        for worker in problem.workers
    )
    return replace(problem, workers=workers)


SECONDS: Final = 60.0
WINDOW: Final = 2 * WORKERS
"""Queries that may be in the pipeline at once."""
FREE: Final = Links({}, default=Link(1e15))
"""Workers share their memory, so hops take next to nothing."""
MOST: Final = 4.0
"""Highest factor of a slow-down."""
LOAD: Final = 0.7
"""Rate of arrivals while latencies are measured, as a share of the rate without interference."""


class Slowdown(NamedTuple):
    """What a worker begins in an interval of time takes `factor` times as long."""

    worker: str
    begin_s: float
    end_s: float
    factor: float


class Clairvoyant:
    """Has the best route at any time, from the slow-downs that it knows of."""

    def __init__(self, problem: RouteProblem, slowdowns: Sequence[Slowdown]) -> None:
        self._problem, self._slowdowns = problem, slowdowns
        self._known: dict[tuple[float, ...], Route] = {}

    def route(self, now: float) -> Route:
        """Return the best route for the slow-downs of this moment."""
        names = dict.fromkeys(each.worker for each in self._slowdowns)
        factors = {name: factor(self._slowdowns, name, now) for name in names}
        known = tuple(factors.values())
        if known not in self._known:
            self._known[known] = best_route(self._problem, factors)
        return self._known[known]

    def seen(self, _now: float, _route: Route, _times: RouteTimes) -> None:
        """Ignore it."""


CLAIRVOYANT: Final = "clairvoyant"
BALANCERS: Final[dict[str, Callable[[RouteProblem, Sequence[Slowdown]], Balancer]]] = {
    "fixed": lambda problem, _: Clairvoyant(problem, ()),
    "lls": lambda problem, _: Searching(problem, lls),
    "odin, alpha 2": lambda problem, _: Searching(problem, partial(odin, alpha=2)),
    "odin, alpha 10": lambda problem, _: Searching(problem, odin),
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
    problem = replace(pipeline(), links=FREE)
    names = [worker.name for worker in problem.workers]
    gap_s = problem.times(best_route(problem, {})).interval_s / LOAD
    for seed in seeds:
        slowdowns = drawn_slowdowns(seed, names)
        for name, balancer in BALANCERS.items():
            closed = served(problem, slowdowns, balancer(problem, slowdowns))
            open_loop = served(problem, slowdowns, balancer(problem, slowdowns), gap_s)
            yield InterferenceResult(
                balancer=name,
                seed=seed,
                rate=len(closed) / SECONDS,
                latency_s=statistics.fmean(each.seconds for each in open_loop),
            )


def run_count(seeds: Sequence[int]) -> int:
    return len(BALANCERS) * len(seeds)


def shares(results: Sequence[InterferenceResult]) -> dict[str, list[float]]:
    """Return the rates of each balancer as shares of the clairvoyant's in the same scenario."""
    best = {each.seed: each.rate for each in results if each.balancer == CLAIRVOYANT}
    found: dict[str, list[float]] = {}
    for each in results:
        found.setdefault(each.balancer, []).append(each.rate / best[each.seed])
    return found


def tables(
    results: Sequence[InterferenceResult],
) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Yield columns and rows of mean rates, shares of the clairvoyant's, and mean latencies."""
    rows = []
    for name, of_name in shares(results).items():
        mine = [each for each in results if each.balancer == name]
        latency_s = statistics.fmean(each.latency_s for each in mine)
        rows.append(
            [
                name,
                f"{statistics.fmean(each.rate for each in mine):.1f}",
                f"{statistics.fmean(of_name):.1%}",
                f"{min(of_name):.1%}",
                f"{1000 * latency_s:.1f}",
            ]
        )
    yield ("balancer", "queries per second", "of clairvoyant", "worst", "latency (ms)"), rows


def drawn_slowdowns(seed: int, workers: Sequence[str], gap_s: float = 5.0) -> list[Slowdown]:
    """Draw slow-downs by 1.3 to `MOST`, one every `gap_s` on average, for 0.2 to 2 times that."""
    generator = np.random.default_rng(seed)
    found, now = [], 0.0
    while (now := now + generator.exponential(gap_s)) < SECONDS:
        worker = workers[int(generator.integers(len(workers)))]
        end_s = now + generator.uniform(0.2 * gap_s, 2 * gap_s)
        found.append(Slowdown(worker, now, end_s, float(generator.uniform(1.3, MOST))))
    return found


def factor(slowdowns: Sequence[Slowdown], worker: str, now: float) -> float:
    """Return how slow a worker is; of several slow-downs at once, the worst counts."""
    factors = (
        each.factor
        for each in slowdowns
        if each.worker == worker and each.begin_s <= now < each.end_s
    )
    return max(factors, default=1.0)


class Served(NamedTuple):
    """When a query ended, and how long it took."""

    ended: float
    seconds: float


def served(
    problem: RouteProblem, slowdowns: Sequence[Slowdown], balancer: Balancer, gap_s: float = 0.0
) -> list[Served]:
    """Return the queries that entered in time.

    Workers and links serve queries in the order in which these enter the pipeline. Queries arrive
    at equal gaps. Without a gap, each one arrives as soon as it may enter.
    """
    free: dict[str | tuple[str, str], float] = defaultdict(float)

    flying: list[tuple[float, int, Route, RouteTimes]] = []
    found: list[Served] = []
    now, number = 0.0, 0
    while now < SECONDS:
        arrival = number * gap_s
        now = max(now, arrival)
        while flying and (flying[0][0] <= now or len(flying) == WINDOW):
            end, _, route, times = heapq.heappop(flying)
            now = max(now, end)
            balancer.seen(end, route, times)
        route, at = balancer.route(now), now
        undisturbed = problem.times(route)
        workers = [leg.worker for leg in route.legs]
        stages: list[float] = []
        for link, worker, hop, stage_s in zip_longest(
            pairwise([problem.source, *workers, problem.source]),
            workers,
            undisturbed.hops,
            undisturbed.stages,
        ):
            free[link] = max(at, free[link]) + hop.interval_s
            at = free[link] + (hop.seconds - hop.interval_s)
            if worker is not None:
                begin = max(at, free[worker])
                stages.append(stage_s * factor(slowdowns, worker, begin))
                at = free[worker] = begin + stages[-1]
        found.append(Served(at, at - (arrival if gap_s else now)))
        taken = RouteTimes(tuple(stages), undisturbed.hops)
        heapq.heappush(flying, (at, number, route, taken))
        number += 1
    return found
