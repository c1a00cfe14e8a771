"""Planners that compare all routes of at most so many legs."""

from __future__ import annotations

import math
from itertools import combinations, pairwise, permutations
from math import comb, perm
from typing import TYPE_CHECKING, Final

from profiler.planning.moves import joined
from synergai.core.routes.planner import found
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import Route, RouteProblem

MAX_ROUTES: Final = 200_000
"""Number of routes above which they are not enumerated."""


def local(problem: RouteProblem) -> Search:
    """Plan the whole engine on the best worker."""
    return _fastest(problem, 1)


def neurosurgeon(problem: RouteProblem) -> Search:
    """Cut at most once, as Neurosurgeon does (Kang et al. 2017)."""
    return _fastest(problem, 2)


def exhaustive(problem: RouteProblem) -> Search:
    """Compare all routes of a small problem, by which the other planners are checked."""
    return _fastest(problem)


def _fastest(problem: RouteProblem, legs: int | None = None) -> Search:
    """Return the fastest route; of several, one with the fewest legs."""
    timed = (
        (problem.times(route).seconds(problem.queries), route) for route in routes(problem, legs)
    )
    best_s, best = min(timed, key=lambda each: each[0], default=(math.inf, None))
    return found(best if best_s < math.inf else None)


def route_count(segments: int, workers: int, legs: int | None = None) -> int:
    """Return the number of routes of at most `legs` legs, whether they fit or not."""
    most = min(segments, workers, segments if legs is None else legs)
    return sum(comb(segments - 1, legs - 1) * perm(workers, legs) for legs in range(1, most + 1))


def routes(problem: RouteProblem, legs: int | None = None) -> Iterator[Route]:
    """Return the routes of at most `legs` legs that fit, those with fewer legs first.

    Raises:
        InvalidInput: there are more than `MAX_ROUTES`.
    """
    end, workers = problem.chain.end, problem.workers
    most = min(end, len(workers), *([] if legs is None else [legs]))
    number = route_count(end, len(workers), most)
    if number > MAX_ROUTES:
        raise InvalidInput(
            f"{problem.chain.engine} has {number} routes over {len(workers)} workers, too many to "
            "compare; use the planner 'optimal'"
        )
    for count in range(1, most + 1):
        for cuts in combinations(range(1, end), count - 1):
            stages = list(pairwise((0, *cuts, end)))
            for chosen in permutations(workers, count):
                if all(problem.fits(w, *stage) for w, stage in zip(chosen, stages, strict=True)):
                    yield joined(end, cuts, [worker.name for worker in chosen])
