"""Options to run queries: whole, as replicas, and in stages."""

import math

import pytest
from msgspec.structs import replace

from profiler.planning.enumeration import routes
from profiler.planning.moves import seconds
from profiler.planning.options import choose, cost, staged_options, whole_options
from synergai.core.routes.deployment import Objective
from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import HOST_BYTES, Chain, RouteProblem, RouteWorker
from synergai.domain import EngineName

CHAIN = Chain(
    engine=EngineName("net"),
    sizes=(0, 1000, 10, 0),
    weights_before=(0, 10_000_000, 40_000_000, 100_000_000),
    weights_after=(100_000_000, 90_000_000, 60_000_000, 0),
)
SMALL = HOST_BYTES + 200e6


def worker(name: str, speed: float = 1.0, budget_bytes: float = math.inf) -> RouteWorker:
    ends = (0.0, 0.2, 0.5, 1.0)
    seconds = tuple(tuple(max(0.0, b - a) / speed for b in ends) for a in ends)
    return RouteWorker(name, seconds, budget_bytes)


def problem(*workers: RouteWorker, queries: int = 1) -> RouteProblem:
    links = Links({}, default=Link(1000.0))
    return RouteProblem(chain=CHAIN, workers=workers, links=links, queries=queries)


def test_one_query_has_no_replicas() -> None:
    assert [each.name for each in whole_options(problem(worker("a"), worker("b")))] == [
        "whole on a",
        "whole on b",
    ]


def test_replicas_share_queries_by_their_speed() -> None:
    replicas = whole_options(problem(worker("a"), worker("b", 3), queries=100))[-1]
    assert {each.route.legs[0].worker: each.queries for each in replicas.shares} == {
        "a": 25,
        "b": 75,
    }
    assert replicas.seconds == pytest.approx(25)
    assert replicas.interval_s == pytest.approx(0.25)
    assert not replicas.is_split


def test_worker_that_would_end_last_gets_no_query() -> None:
    replicas = whole_options(problem(worker("a"), worker("b", 1000), queries=10))[-1]
    assert [each.route.legs[0].worker for each in replicas.shares] == ["b"]


def test_worker_without_the_memory_does_not_run_it_whole() -> None:
    options = whole_options(problem(worker("a", budget_bytes=SMALL), worker("b"), queries=9))
    assert [each.name for each in options] == ["whole on b"]


def test_route_of_unknown_times_is_no_option() -> None:
    unknown = RouteWorker("a", ((math.inf,) * 4,) * 4)
    for planner in ("optimal", "neurosurgeon"):
        assert staged_options(problem(unknown, worker("b")), planner) == []


def test_best_route_of_each_number_of_stages_is_weighed() -> None:
    case = problem(worker("a", 2), worker("b"), worker("c"), worker("d"))
    options = staged_options(case, "optimal")
    assert [option.name for option in options] == ["2 stages", "3 stages"]
    assert [len(option.shares[0].route.legs) for option in options] == [2, 3]
    assert options[0].seconds == min(
        seconds(case, route) for route in routes(case, legs=2) if len(route.legs) == 2
    )


def test_routes_side_by_side_are_weighed_for_many_queries() -> None:
    workers = (worker("a", 1, SMALL), worker("b"), worker("c", 1, SMALL))
    [*_, several, _] = staged_options(problem(*workers, queries=100), "optimal")
    assert several.name == "several routes"
    assert sorted(len(share.route.legs) for share in several.shares) == [1, 2]
    assert all(
        option.name != several.name for option in staged_options(problem(*workers), "optimal")
    )


def test_route_of_another_planner_is_weighed_if_it_has_stages() -> None:
    case = problem(worker("a", 2, SMALL), worker("b", 1, SMALL))
    [option] = staged_options(case, "neurosurgeon")
    assert option.name == "route of neurosurgeon"
    assert staged_options(case, "local") == []


# Queries, and speed, power and memory of each worker.
ROOMY = math.inf
CASES: dict[str, tuple[Objective, int, list[tuple[float, float, float]]]] = {
    "a slow worker needs little power": ("energy", 10, [(4, 100, ROOMY), (1, 10, ROOMY)]),
    "one of two equally fast workers needs less": ("energy", 10, [(1, 30, ROOMY), (1, 20, ROOMY)]),
    "one of four needs the least": ("energy", 10, [(2, 60, ROOMY), *[(1, 50, ROOMY)] * 3]),
    "a slow worker can do a part of one query": ("fairness", 1, [(3, 0, ROOMY), (1, 0, ROOMY)]),
    "small workers can do parts of it": (
        "fairness",
        1,
        [(3, 0, ROOMY), (1, 0, SMALL), (1, 0, SMALL)],
    ),
    "a small worker can do a part": ("fairness", 10, [(6, 0, ROOMY), (1, 0, SMALL)]),
}


@pytest.mark.parametrize("name", CASES)
def test_objective_decides_otherwise_than_throughput(name: str) -> None:
    objective, queries, workers = CASES[name]
    fleet = [
        replace(worker(f"w{number}", speed, memory), watts=watts)
        for number, (speed, watts, memory) in enumerate(workers)
    ]
    case = replace(problem(*fleet, queries=queries), links=Links({}, Link(1e6)))
    options = [*whole_options(case), *staged_options(case, "optimal")]
    best = choose(case, options, 0.15, objective=objective)
    fastest = choose(case, options, 0.15)
    assert best != fastest
    assert cost(case, best, objective) < cost(case, fastest, objective)
    assert best.seconds > fastest.seconds
