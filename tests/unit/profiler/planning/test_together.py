"""Options of several engines together."""

import random
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from profiler.planning.deployment import Need, wanted
from profiler.planning.enumeration import routes
from profiler.planning.together import Engine, combinations
from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import Chain, Route, RouteProblem, RouteWorker
from synergai.domain import EngineName

MB = 1_000_000


def drawn(draw: random.Random, memory: list[int], name: str) -> RouteProblem:
    """An engine that no worker can hold, of six segments; half of the workers compute the first
    three of them faster, the others the last three."""
    seconds = [draw.uniform(0.1, 1.0) for _ in range(6)]
    weights = tuple(12 * MB * position for position in range(7))
    workers = []
    for number, budget in enumerate(memory):
        own = [(3.0 if (at < 3) == number % 2 else 1.0) * each for at, each in enumerate(seconds)]
        rows = tuple(tuple(sum(own[first:last]) for last in range(7)) for first in range(7))
        workers.append(RouteWorker(f"w{number}", rows, budget))
    chain = Chain(
        engine=EngineName(name),
        sizes=tuple(draw.randrange(1_000, 9_000) for _ in range(7)),
        weights_before=weights,
        weights_after=weights[::-1],
    )
    links = Links({}, Link(1e4))
    return RouteProblem(chain=chain, workers=tuple(workers), links=links, queries=10_000)


def loads(problem: RouteProblem, route: Route) -> tuple[list[float], list[float]]:
    """The time of each worker and of its links for one query, and the memory of each worker."""
    busy: defaultdict[object, float] = defaultdict(float)
    memory: defaultdict[str, float] = defaultdict(float)
    places = [0]
    seconds = {each.name: each.seconds for each in problem.workers}
    for worker, first, last in route.legs:
        busy[worker] += seconds[worker][first][last]
        memory[worker] += problem.memory_bytes(first, last)
        places.append(last)
    hosts = [GATEWAY, *(leg.worker for leg in route.legs), GATEWAY]
    for way, place in zip(pairwise(hosts), places, strict=True):
        for pair, link in problem.links.way(*way).items():
            busy[pair] += problem.chain.sizes[place] / link.bytes_per_s
    links = [pair for name in seconds for pair in ((name, GATEWAY), (GATEWAY, name))]
    return [busy[each] for each in (*seconds, *links)], [memory[name] for name in seconds]


HOST = 58 * MB


@pytest.mark.parametrize("seed", range(12))
def test_drawn_engines_together_are_within_5_percent_of_the_best_routes_of_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("synergai.core.routes.problem", "profiler.planning.tables"):
        monkeypatch.setattr(f"{module}.HOST_BYTES", HOST)  # with others, other problems are drawn
    draw = random.Random(seed)
    memory = [draw.randrange(225, 266) * MB for _ in range(4)]
    shares = draw.choice([(0.5, 0.5), (0.25, 0.75)])
    problems = [drawn(draw, memory, name) for name in ("one", "two")]
    taken = [[loads(each, route) for route in routes(each)] for each in problems]
    busy, sizes = ([np.array([pair[at] for pair in each]) for each in taken] for at in (0, 1))
    one, two = (share * each for share, each in zip(shares, busy, strict=True))
    both = sizes[0][:, np.newaxis] + sizes[1]
    intervals = (one[:, np.newaxis] + two).max(axis=2)
    best_s = intervals[(both <= np.array(memory)).all(axis=2)].min()
    needs = [
        Need(problem=problem, queries_per_s=share)
        for problem, share in zip(problems, shares, strict=True)
    ]
    engines = [
        Engine(problem, share, 0.0, is_deployed=False)
        for problem, share in zip(problems, shares, strict=True)
    ]
    for engine, (plan, _) in zip(engines, wanted(needs, "optimal").values(), strict=True):
        assert plan is not None
        engine.add(plan, changes=False)
    found = combinations(engines, "throughput")
    assert found.lacking[0] == 0
    assert found.costs[0] <= 1.05 * best_s
