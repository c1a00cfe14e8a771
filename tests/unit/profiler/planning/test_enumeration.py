import math

import pytest
from msgspec.structs import replace

from benchmarks.drawn_routes import drawn_problem
from profiler.planning.enumeration import routes
from synergai.core.routes.planner import ROUTE_PLANNERS, run_search
from synergai.core.routes.problem import Leg, Route, RouteProblem, RouteWorker
from synergai.errors import InvalidInput
from tests.chain_problems import HALF, halves


def plan(name: str, of: RouteProblem) -> Route | None:
    """Return the route of an offline planner, which must not try any."""
    route, trials = run_search(ROUTE_PLANNERS.get(name)(of), of.times)
    assert trials == 0
    return route


def test_all_cuts_and_orders_of_workers_are_routes() -> None:
    unlimited = halves(math.inf, math.inf, math.inf)
    assert [len(route.legs) for route in routes(unlimited)] == [1, 1, 1, 2, 2, 2, 2, 2, 2]
    drawn = drawn_problem(3, cuts=3, workers=4)
    for route in routes(drawn):
        drawn.times(route)  # raises on what is no route


@pytest.mark.parametrize("name", ["local", "neurosurgeon", "exhaustive"])
def test_one_query_is_not_split_over_workers_that_are_alike(name: str) -> None:
    assert plan(name, halves(math.inf, math.inf)) == Route((Leg("w0", 0, 2),))


@pytest.mark.parametrize("name", ["neurosurgeon", "exhaustive"])
def test_many_queries_are_split(name: str) -> None:
    route = plan(name, halves(math.inf, math.inf, queries=10))
    assert route == Route((Leg("w0", 0, 1), Leg("w1", 1, 2)))


def test_local_takes_the_only_worker_that_holds_the_engine() -> None:
    assert plan("local", halves(HALF, math.inf)) == Route((Leg("w1", 0, 2),))


def test_engine_that_fits_on_no_worker_is_split() -> None:
    of = halves(HALF, HALF)
    assert plan("local", of) is None
    assert plan("neurosurgeon", of) == Route((Leg("w0", 0, 1), Leg("w1", 1, 2)))


@pytest.mark.parametrize("name", ["local", "neurosurgeon", "exhaustive"])
@pytest.mark.parametrize("budgets", [(), (0,), (HALF,), (0, HALF)])
def test_impossible_engine_has_no_route(name: str, budgets: tuple[float, ...]) -> None:
    assert plan(name, halves(*budgets)) is None


@pytest.mark.parametrize("name", ["local", "neurosurgeon", "exhaustive"])
def test_stage_whose_time_is_not_known_is_in_no_route(name: str) -> None:
    unknown = RouteWorker("w0", ((math.inf,) * 3,) * 3)
    assert plan(name, replace(halves(), workers=(unknown,))) is None


def test_too_many_routes_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"has \d+ routes over 6 workers.*'optimal'"):
        plan("exhaustive", drawn_problem(0, cuts=28, workers=6))
