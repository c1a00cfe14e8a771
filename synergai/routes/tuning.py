"""Online search that moves one segment at a time away from the slowest stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias

from synergai.routes.moves import is_possible, moved
from synergai.routes.problem import Route, RouteTimes

if TYPE_CHECKING:
    from synergai.routes.problem import RouteProblem

Taker: TypeAlias = Callable[[Route, "tuple[float, ...]", int], "int | None"]
"""Returns the leg that gets a segment of the slowest one, by a route and the times of its legs."""
Tuned: TypeAlias = Generator[Route, RouteTimes, "tuple[Route, float]"]

_PLATEAU = 0.01


def tuned(problem: RouteProblem, start: Route, taker: Taker, *, alpha: int, leaps: bool) -> Tuned:
    """Search from a route until `alpha` steps in a row bring no gain.

    It continues from a worse route, since the next step may make up for it. A route is tried once.

    Args:
        leaps: repeat a step that changed nothing, to get off a plateau.

    Returns:
        The best route that was tried, and its time.
    """
    known: dict[Route, RouteTimes] = {}
    route, best, best_s, failures = start, start, math.inf, 0
    step: tuple[int, int] | None = None
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
        if not (leaps and on_plateau and step):
            slowest = max(range(len(times.stages)), key=times.stages.__getitem__)
            other = taker(route, times.stages, slowest)
            if other is None:
                return best, best_s
            step = slowest, other
        following = moved(route, *step)
        if following is None or not is_possible(problem, following):
            return best, best_s
        route = following
