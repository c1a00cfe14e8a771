"""Online search that moves one segment at a time away from the slowest stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from synergai.routes.moves import is_possible, moved
from synergai.routes.problem import Route, RouteTimes

if TYPE_CHECKING:
    from synergai.routes.problem import RouteProblem

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
