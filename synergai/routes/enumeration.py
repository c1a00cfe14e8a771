"""Planners that compare all routes of at most so many legs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from math import comb, perm
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput
from synergai.routes.planner import found
from synergai.routes.problem import Leg, Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.routes.planner import Search
    from synergai.routes.problem import RouteProblem

MAX_ROUTES: Final = 200_000
"""Number of routes above which they are not enumerated."""


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Compares all routes of at most `legs` legs, or of any number.

    Of routes that are equally fast, it takes one with the fewest legs.
    """

    legs: int | None = None

    def search(self, problem: RouteProblem) -> Search:
        """Return the fastest of all routes.

        Raises:
            InvalidInput: there are more than `MAX_ROUTES`.
        """

        def seconds(route: Route) -> float:
            return problem.times(route).seconds(problem.queries)

        best = min(routes(problem, self.legs), key=seconds, default=None)
        return found(best if best is not None and seconds(best) < math.inf else None)


def local() -> Enumeration:
    """Return the planner of whole engines: the best worker alone."""
    return Enumeration(1)


def neurosurgeon() -> Enumeration:
    """Return the planner that cuts at most once, as Neurosurgeon does (Kang et al. 2017)."""
    return Enumeration(2)


def exhaustive() -> Enumeration:
    """Return the planner of small problems by which the others are checked."""
    return Enumeration()


def routes(problem: RouteProblem, legs: int | None = None) -> Iterator[Route]:
    """Return the routes of at most `legs` legs that fit, those with fewer legs first."""
    end, workers = problem.chain.end, problem.workers
    most = min(end, len(workers), *([] if legs is None else [legs]))
    number = sum(
        comb(end - 1, count - 1) * perm(len(workers), count) for count in range(1, most + 1)
    )
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
                    yield Route(
                        tuple(
                            Leg(worker.name, first, last)
                            for worker, (first, last) in zip(chosen, stages, strict=True)
                        )
                    )
