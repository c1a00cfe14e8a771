"""Routes as cuts and workers, and the steps that searches take from one to another."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from synergai.core.routes.problem import Leg, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.routes.problem import RouteProblem


def joined(end: int, cuts: Sequence[int], workers: Sequence[str]) -> Route:
    """Return the route whose legs end at `cuts` and at `end`, on `workers`."""
    stages = pairwise((0, *cuts, end))
    return Route(tuple(Leg(worker, *stage) for worker, stage in zip(workers, stages, strict=True)))


def is_possible(problem: RouteProblem, route: Route) -> bool:
    """Return whether the workers of a route have the memory and known times for their legs."""
    workers = {worker.name: worker for worker in problem.workers}
    return all(
        (worker := workers.get(name)) is not None
        and worker.seconds[first][last] < math.inf
        and problem.fits(worker, first, last)
        for name, first, last in route.legs
    )


def seconds(problem: RouteProblem, route: Route) -> float:
    """Return the time of a route by the problem, which is infinite if it is not possible."""
    if not is_possible(problem, route):
        return math.inf
    return problem.times(route).seconds(problem.queries)


def moved(route: Route, giver: int, taker: int) -> Route | None:
    """Return a route in which a leg has one segment less, and another one more.

    The boundaries between them move by one segment. Returns None if the leg has no more than one.
    """
    legs = route.legs
    if legs[giver].last - legs[giver].first == 1:
        return None
    cuts = [leg.last for leg in legs[:-1]]
    between = range(giver, taker) if giver < taker else range(taker, giver)
    for cut in between:
        cuts[cut] += -1 if giver < taker else 1
    return joined(legs[-1].last, cuts, [leg.worker for leg in legs])


def weights(problem: RouteProblem) -> list[float]:
    """Return the work of each segment: what it adds to the time of a head, over all workers.

    The workers have equal say, however fast they are. Without times of heads, segments are alike.
    """
    heads: list[Sequence[float]]
    heads = [worker.seconds[0] for worker in problem.workers if max(worker.seconds[0]) < math.inf]
    heads = heads or [range(problem.chain.end + 1)]
    return [
        sum(max(0.0, head[last] - head[first]) / head[-1] for head in heads)
        for first, last in pairwise(range(problem.chain.end + 1))
    ]
