"""Online searches that move one segment at a time away from the slowest stage.

- Shisha: Soomro, Abduljabbar, Castrillon, Pericàs: "Shisha: Online scheduling of CNN pipelines on
  heterogeneous architectures" (PPAM 2022)
- ODIN: Soomro et al.: "ODIN: Overcoming dynamic interference in inference pipelines" (Euro-Par
  2023)

Only summaries were available. That of Shisha names one of the rules, to unload the slowest stage to
the lightest fast worker; the others are reconstructed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from synergai.errors import InvalidInput
from synergai.routes.moves import current, is_possible, joined, moved, weights
from synergai.routes.problem import Route, RouteTimes

if TYPE_CHECKING:
    from synergai.routes.planner import Search
    from synergai.routes.problem import RouteProblem, RouteWorker

Taker: TypeAlias = Callable[["tuple[float, ...]", int], "Sequence[int]"]
"""Returns which legs may get a segment of the slowest one, the best first, by the times of legs."""
Tuned: TypeAlias = Generator[Route, RouteTimes, "tuple[Route, float]"]

_PLATEAU = 0.01


def tuned(problem: RouteProblem, start: Route, taker: Taker, *, alpha: int, leaps: bool) -> Tuned:
    """Search from a route until `alpha` steps in a row bring no gain.

    It continues from a worse route, since the next step may make up for it. A route is tried once,
    and a step to one that was not tried is preferred.

    Args:
        leaps: repeat a step that changed nothing, to get off a plateau.

    Returns:
        The best route that was tried, and its time.
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
            takers = taker(times.stages, giver)
        moves = [moved(route, giver, each) for each in takers]
        following = [each for each in moves if each is not None and is_possible(problem, each)]
        if not following:
            return best, best_s
        route = next((each for each in following if each not in known), following[0])


BALANCES: Final = ("lightest", "nearest")


class Shisha:
    """Shares the work by the speeds of workers, then moves segments while routes are tried.

    Args:
        balance: who takes a segment of the slowest stage: the ``lightest`` stage, or the
            ``nearest`` one.
        alpha: steps in a row without a gain after which the search ends.

    Raises:
        InvalidInput: the rule is unknown.
    """

    def __init__(self, balance: str = "lightest", alpha: str = "3") -> None:
        if balance not in BALANCES:
            raise InvalidInput(f"balance is one of {', '.join(BALANCES)}, not {balance!r}")
        self._taker = _lightest if balance == "lightest" else _nearest
        self._alpha = int(alpha)

    def search(self, problem: RouteProblem) -> Search:
        """Search from balanced routes over all workers, then over fewer while that is better.

        The fastest worker comes first in one of them, and last in the other.
        """
        best, best_s = None, math.inf
        for legs in range(min(len(problem.workers), problem.chain.end), 0, -1):
            before_s = best_s
            workers = _fastest(problem, legs)
            for start in dict.fromkeys(
                balanced(problem, each) for each in (workers, workers[::-1])
            ):
                if is_possible(problem, start):
                    route, taken_s = yield from tuned(
                        problem, start, self._taker, alpha=self._alpha, leaps=False
                    )
                    if taken_s < best_s:
                        best, best_s = route, taken_s
            if best_s == before_s < math.inf:
                break
        return best


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


def start(problem: RouteProblem) -> Route | None:
    """Return the running route or, without one, the balanced route over the most workers."""
    counts = range(min(len(problem.workers), problem.chain.end), 0, -1)
    seeds = (balanced(problem, _fastest(problem, legs)) for legs in counts)
    return current(problem) or next((each for each in seeds if is_possible(problem, each)), None)


def _fastest(problem: RouteProblem, count: int) -> list[RouteWorker]:
    return sorted(problem.workers, key=lambda worker: worker.seconds[0][-1])[:count]


def _lightest(stages: Sequence[float], slowest: int) -> list[int]:
    others = (leg for leg in range(len(stages)) if leg != slowest)
    return sorted(others, key=lambda leg: stages[leg])


def _nearest(stages: Sequence[float], slowest: int) -> list[int]:
    others = (leg for leg in range(len(stages)) if leg != slowest)
    return sorted(others, key=lambda leg: abs(leg - slowest))


class Odin:
    """Moves segments off the slowest stage, towards the side with less work.

    Args:
        alpha: steps in a row without a gain after which the search ends.
    """

    def __init__(self, alpha: str = "10") -> None:
        self._alpha = int(alpha)

    def search(self, problem: RouteProblem) -> Search:
        """Search from the running route; one that a step left as it was gets the step again."""
        first = start(problem)
        if first is None:
            return None
        route, _ = yield from tuned(problem, first, _lighter_side, alpha=self._alpha, leaps=True)
        return route


class LeastLoaded:
    """Moves segments from the slowest to the fastest stage until that brings no gain."""

    def search(self, problem: RouteProblem) -> Search:
        """Search from the running route."""
        first = start(problem)
        if first is None:
            return None
        route, _ = yield from tuned(problem, first, _least_loaded, alpha=1, leaps=False)
        return route


def _lighter_side(stages: Sequence[float], slowest: int) -> Sequence[int]:
    """Return the fastest stage of the side of the slowest one that takes less time."""
    sides = [side for side in (range(slowest), range(slowest + 1, len(stages))) if side]
    if not sides:
        return ()
    side = min(sides, key=lambda each: sum(stages[leg] for leg in each))
    return (min(side, key=lambda leg: stages[leg]),)


def _least_loaded(stages: Sequence[float], slowest: int) -> Sequence[int]:
    others = [leg for leg in range(len(stages)) if leg != slowest]
    return (min(others, key=lambda leg: stages[leg]),) if others else ()
