"""Online searches of routes with which Shisha and Pipe-search are compared, and fleets for them.

Links are equal, and ranges are long, as in the papers. A trial runs a route once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from benchmarks.drawn_routes import drawn_problem
from profiler.planning.moves import joined, moved
from profiler.simulator.pipelines.measured_chains import measured_chains
from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import RouteProblem, RouteWorker
from synergai.domain import EngineName

if TYPE_CHECKING:
    from numpy.random import Generator

    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import Route

NETWORK: Final = EngineName("onnx_resnet50_op11")
SLOWNESS: Final = (1.5, 2, 3, 4)
"""Time of a slow worker over that of a fast one."""
MOST_TRIALS: Final = 3000
CLOSE: Final = 0.95
"""Share of the optimum from which a route is close to it."""
QUERIES: Final = 1000
EQUAL_LINKS: Final = Links({}, Link(1e9, 0.0))

Searching: TypeAlias = Callable[[RouteProblem, int], "Search"]


def fast_and_slow() -> list[RouteProblem]:
    """Return fleets of four workers, some of which take longer for all layers alike."""
    chain, seconds = measured_chains()[NETWORK]
    problems = []
    for slowness in SLOWNESS:
        for slow in (1, 2, 3):
            factors = [1.0] * (4 - slow) + [slowness] * slow
            workers = tuple(
                RouteWorker(f"w{number}", tuple(tuple(f * each for each in row) for row in seconds))
                for number, f in enumerate(factors)
            )
            problems.append(
                RouteProblem(chain=chain, workers=workers, links=EQUAL_LINKS, queries=QUERIES)
            )
    return problems


def equally_linked(seed: int) -> RouteProblem:
    """Draw a fleet without limits of memory, and with equal links."""
    drawn = drawn_problem(seed, cuts=28, workers=4, queries=QUERIES, alike=0)
    unlimited = tuple(replace(each, budget_bytes=math.inf) for each in drawn.workers)
    return replace(drawn, workers=unlimited, links=EQUAL_LINKS)


def tried(problem: RouteProblem, search: Search) -> list[float]:
    """Return the times of the routes that a search tries, in their order."""
    taken: list[float] = []
    try:
        route = next(search)
        while len(taken) < MOST_TRIALS:
            times = problem.times(route)
            taken.append(times.seconds(problem.queries))
            route = search.send(times)
    except StopIteration:
        pass
    return taken


def random_walk(problem: RouteProblem, seed: int) -> Search:
    generator = np.random.default_rng(seed)
    while True:
        yield drawn_route(problem, generator)


def climbing(heat: float, problem: RouteProblem, seed: int) -> Search:
    """Step to a random neighbour that is faster; with heat, at times also to a slower one.

    Without heat, it starts anew after 30 neighbours in vain.
    """
    generator = np.random.default_rng(seed)
    route = drawn_route(problem, generator)
    taken_s, failures = (yield route).seconds(problem.queries), 0
    while True:
        following = neighbour(problem, route, generator)
        following_s = (yield following).seconds(problem.queries)
        heat *= 0.99
        worse = following_s / taken_s - 1
        if worse < 0 or (heat > 1e-6 and generator.random() < math.exp(-worse / heat)):
            route, taken_s, failures = following, following_s, 0
        else:
            failures += 1
        if failures == 30 and not heat:
            route = drawn_route(problem, generator)
            taken_s, failures = (yield route).seconds(problem.queries), 0


def drawn_route(problem: RouteProblem, generator: Generator) -> Route:
    """Draw the number of legs, the cuts and the workers of a route."""
    end, names = problem.chain.end, [worker.name for worker in problem.workers]
    legs = int(generator.integers(1, min(end, len(names)) + 1))
    cuts = generator.choice(np.arange(1, end), legs - 1, replace=False)
    chosen = generator.choice(names, legs, replace=False)
    return joined(end, sorted(map(int, cuts)), list(map(str, chosen)))


def neighbour(problem: RouteProblem, route: Route, generator: Generator) -> Route:
    """Return a route with a boundary moved, workers exchanged, or one leg more or less."""
    end, names = problem.chain.end, [worker.name for worker in problem.workers]
    while True:
        cuts = [leg.last for leg in route.legs[:-1]]
        workers = [leg.worker for leg in route.legs]
        kind, leg = generator.integers(4), int(generator.integers(len(workers)))
        other = str(generator.choice(names))
        place = int(generator.integers(1, end))
        if kind == 0:
            taker = leg + (1 if generator.random() < 0.5 else -1)
            found = moved(route, leg, taker) if 0 <= taker < len(workers) else None
            if found is not None:
                return found
        elif kind == 1 and other != workers[leg]:
            if other in workers:
                workers[workers.index(other)] = workers[leg]
            workers[leg] = other
            return joined(end, cuts, workers)
        elif kind == 2 and other not in workers and place not in cuts:
            at = sum(cut < place for cut in cuts)
            return joined(end, sorted([*cuts, place]), [*workers[:at], other, *workers[at:]])
        elif kind == 3 and cuts:
            cuts.pop(int(generator.integers(len(cuts))))
            workers.pop(leg)
            return joined(end, cuts, workers)


SEARCHES: Final[dict[str, Searching]] = {
    "random walk": random_walk,
    "hill climbing": partial(climbing, 0.0),
    "annealing": partial(climbing, 0.2),
}
