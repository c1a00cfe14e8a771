"""Genetic planner of routes, after Reisinger et al.

The paper names a genetic strategy, and describes nothing of it. Mutations and figures are
reconstructed.
"""

from __future__ import annotations

import math
from bisect import bisect
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.routes.moves import current, joined, seconds
from synergai.routes.planner import found
from synergai.routes.problem import Leg, Route

if TYPE_CHECKING:
    from numpy.random import Generator

    from synergai.routes.planner import Search
    from synergai.routes.problem import RouteProblem

_POPULATION: Final = 40
_PARENTS: Final = 13
_ELITE: Final = 4
_GENERATIONS: Final = 150


class Genetic:
    """Breeds routes from each worker alone, the current route and random ones."""

    def __init__(self, seed: str = "0") -> None:
        self._seed = int(seed)

    def search(self, problem: RouteProblem) -> Search:
        """Return the fastest route of the last generation."""
        if not problem.workers:
            return found(None)
        generator = np.random.default_rng(self._seed)
        known = {route: seconds(problem, route) for route in _ancestors(problem)}
        population = list(known)
        while len(population) < _POPULATION:
            population.append(_random_route(problem, generator))
        for _ in range(_GENERATIONS):
            for route in population:
                if route not in known:
                    known[route] = seconds(problem, route)
            ranked = sorted(dict.fromkeys(population), key=lambda route: known[route])
            parents = generator.integers(min(_PARENTS, len(ranked)), size=_POPULATION - _ELITE)
            children = [_mutated(problem, ranked[parent], generator) for parent in parents]
            population = [*ranked[:_ELITE], *children]
        return found(ranked[0] if known[ranked[0]] < math.inf else None)


def _ancestors(problem: RouteProblem) -> list[Route]:
    alone = [Route((Leg(each.name, 0, problem.chain.end),)) for each in problem.workers]
    running = current(problem)
    return alone if running is None else [*alone, running]


def _random_route(problem: RouteProblem, generator: Generator) -> Route:
    end, names = problem.chain.end, [worker.name for worker in problem.workers]
    legs = int(generator.integers(1, min(end, len(names)) + 1))
    cuts = generator.choice(np.arange(1, end), legs - 1, replace=False)
    workers = generator.choice(len(names), legs, replace=False)
    return joined(end, sorted(map(int, cuts)), [names[worker] for worker in workers])


def _mutated(problem: RouteProblem, route: Route, generator: Generator) -> Route:
    """Return a route with a cut moved, a worker exchanged, a leg more or less, or a random one."""

    def draw(below: int) -> int:
        return int(generator.integers(below))

    end = problem.chain.end
    cuts = [leg.last for leg in route.legs[:-1]]
    workers = [leg.worker for leg in route.legs]
    leg, place = draw(len(workers)), draw(end)
    other = problem.workers[draw(len(problem.workers))].name
    chance = generator.random()
    if chance < 0.4 and cuts:
        cut = draw(len(cuts))
        moved = cuts[cut] + (-2, -1, 1, 2)[draw(4)]
        before, after = [0, *cuts][cut], [*cuts, end][cut + 1]
        cuts[cut] = min(max(moved, before + 1), after - 1)
    elif 0.4 <= chance < 0.65:
        if other in workers:
            workers[workers.index(other)] = workers[leg]
        workers[leg] = other
    elif 0.65 <= chance < 0.8 and place not in (0, *cuts) and other not in workers:
        at = bisect(cuts, place)
        cuts.insert(at, place)
        workers.insert(at + draw(2), other)
    elif 0.8 <= chance < 0.9 and cuts:
        cuts.pop(draw(len(cuts)))
        workers.pop(leg)
    else:
        return _random_route(problem, generator)
    return joined(end, cuts, workers)
