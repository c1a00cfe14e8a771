"""Online searches that move one segment at a time away from the slowest stage.

- Shisha: Soomro, Abduljabbar, Castrillon, Pericàs: "Shisha: Online scheduling of CNN pipelines on
  heterogeneous architectures" (PPAM 2022)
- ODIN: Soomro et al.: "ODIN: Overcoming dynamic interference in inference pipelines" (Euro-Par
  2023)

Only summaries were available. That of Shisha names one of the rules, to unload the slowest stage to
the lightest fast worker; the others are reconstructed, as is which workers are fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from profiler.planning.moves import is_possible, joined, moved, weights
from synergai.core.routes.problem import Route, RouteTimes

if TYPE_CHECKING:
    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import RouteProblem, RouteWorker

Taker: TypeAlias = Callable[[Route, "tuple[float, ...]", int], "Sequence[int]"]
"""Returns which legs may get a segment of the slowest one, the best first, by the times of legs."""
Tuned: TypeAlias = Generator[Route, RouteTimes, "tuple[Route, float]"]

_PLATEAU: Final = 0.01


def tuned(problem: RouteProblem, start: Route, taker: Taker, *, alpha: int, leaps: bool) -> Tuned:
    """Search from a route until `alpha` steps in a row bring no gain.

    It continues from a worse route, since the next step may make up for it. A route is tried once,
    and a step to one that was not tried is preferred. With `leaps`, a step that changed nothing is
    repeated, to get off a plateau. Returns the best route that was tried, and its time.
    """
    known: dict[Route, RouteTimes] = {}
    route, best, best_s, failures = start, start, math.inf, 0
    giver = 0
    takers: Sequence[int] = ()
    while True:
        if route not in known:
            known[route] = yield route
        times = known[route]
        taken_s = times.seconds(problem.queries)
        on_plateau = abs(taken_s - best_s) <= _PLATEAU * best_s < math.inf
        if taken_s < best_s:
            best, best_s, failures = route, taken_s, 0
        else:
            failures += 1
        if failures >= alpha:
            return best, best_s
        if not (leaps and on_plateau and takers):
            giver = max(range(len(times.stages)), key=times.stages.__getitem__)
            takers = taker(route, times.stages, giver)
        moves = [moved(route, giver, each) for each in takers]
        following = [each for each in moves if each is not None and is_possible(problem, each)]
        if not following:
            return best, best_s
        route = next((each for each in following if each not in known), following[0])


def lightest(_route: Route, stages: Sequence[float], slowest: int) -> list[int]:
    """Return the other legs, those with the least time first."""
    others = (leg for leg in range(len(stages)) if leg != slowest)
    return sorted(others, key=lambda leg: stages[leg])


def lightest_fast(problem: RouteProblem) -> Taker:
    """Return the rule to prefer legs on fast workers, and among them those with the least time.

    A worker is fast if its time is nearer to that of the fastest one than to the slowest one's.
    """
    times = {worker.name: worker.seconds[0][-1] for worker in problem.workers}
    most_s = math.sqrt(min(times.values(), default=0.0) * max(times.values(), default=0.0))

    def taker(route: Route, stages: Sequence[float], slowest: int) -> list[int]:
        legs = lightest(route, stages, slowest)
        return sorted(legs, key=lambda leg: times[route.legs[leg].worker] > most_s)

    return taker


def shisha(problem: RouteProblem, alpha: int = 3) -> Search:
    """Share the work by the speeds of workers, then move segments while routes are tried.

    It begins with balanced routes over all workers, the fastest one first in one of them and last
    in the other, and continues with fewer workers while that is better. The search from a route
    ends after `alpha` steps in a row without a gain.
    """
    taker = lightest_fast(problem)
    best, best_s = None, math.inf
    for legs in range(min(len(problem.workers), problem.chain.end), 0, -1):
        before_s = best_s
        workers = _fastest(problem, legs)
        for start in dict.fromkeys(balanced(problem, each) for each in (workers, workers[::-1])):
            if is_possible(problem, start):
                route, taken_s = yield from tuned(problem, start, taker, alpha=alpha, leaps=False)
                if taken_s < best_s:
                    best, best_s = route, taken_s
        if best_s == before_s < math.inf:
            break
    return best


def odin(problem: RouteProblem, alpha: int = 10) -> Search:
    """Move segments off the slowest stage of the running route, towards the side with less work.

    The search ends after `alpha` steps in a row without a gain.
    """
    return _rebalanced(problem, _lighter_side, alpha=alpha, leaps=True)


def lls(problem: RouteProblem) -> Search:
    """Move segments from the slowest to the least loaded stage until that brings no gain."""
    return _rebalanced(problem, lambda *stages: lightest(*stages)[:1], alpha=1, leaps=False)


def _rebalanced(problem: RouteProblem, taker: Taker, *, alpha: int, leaps: bool) -> Search:
    """Search from the running route or, without one, the balanced route over the most workers."""
    counts = range(min(len(problem.workers), problem.chain.end), 0, -1)
    seeds = (balanced(problem, _fastest(problem, legs)) for legs in counts)
    running = () if problem.current is None else (problem.current,)
    starts = (each for each in chain(running, seeds) if is_possible(problem, each))
    start = next(starts, None)
    if start is None:
        return None
    route, _ = yield from tuned(problem, start, taker, alpha=alpha, leaps=leaps)
    return route


def balanced(problem: RouteProblem, workers: Sequence[RouteWorker]) -> Route:
    """Return the route over workers whose stages have work in proportion to their speeds."""
    end = problem.chain.end
    speeds = np.array([1 / worker.seconds[0][-1] for worker in workers])
    shares = np.cumsum(speeds) / speeds.sum()
    work = np.cumsum(weights(problem))
    cuts = [0]
    for position, share in enumerate(shares[:-1], 1):
        nearest = int(np.abs(work - share * work[-1]).argmin()) + 1
        # Every stage has a segment.
        cuts.append(min(max(nearest, cuts[-1] + 1), end - len(workers) + position))
    return joined(end, cuts[1:], [worker.name for worker in workers])


def _fastest(problem: RouteProblem, count: int) -> list[RouteWorker]:
    return sorted(problem.workers, key=lambda worker: worker.seconds[0][-1])[:count]


def _lighter_side(_route: Route, stages: Sequence[float], slowest: int) -> Sequence[int]:
    """Return the fastest stage of the side of the slowest one that takes less time."""
    sides = [side for side in (range(slowest), range(slowest + 1, len(stages))) if side]
    if not sides:
        return ()
    side = min(sides, key=lambda each: sum(stages[leg] for leg in each))
    return (min(side, key=lambda leg: stages[leg]),)
