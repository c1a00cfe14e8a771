import pytest
from hypothesis import given, settings

from benchmarks.drawn_routes import drawn_problem
from profiler.planning.genetic import genetic
from profiler.planning.optimal import optimal_route
from synergai.core.routes.planner import ROUTE_PLANNERS, run_search
from synergai.core.routes.problem import Route, RouteProblem
from tests.chain_problems import problems

PROBLEMS = problems(12, 4, 1, 100)


def bred(problem: RouteProblem, seed: int = 0) -> Route | None:
    route, trials = run_search(genetic(problem, seed), problem.times)
    assert trials == 0
    return route


@settings(max_examples=15)
@given(PROBLEMS)
def test_bred_route_is_possible_and_not_slower_than_a_worker_alone(problem: RouteProblem) -> None:
    route = bred(problem)
    alone, _ = run_search(ROUTE_PLANNERS.get("local")(problem), problem.times)
    if alone is not None:
        assert route is not None
        times = [problem.times(each).seconds(problem.queries) for each in (route, alone)]
        assert times[0] <= times[1]
    elif route is not None:
        problem.times(route)  # raises on what is no route


def test_same_seed_breeds_the_same_route() -> None:
    problem = drawn_problem(4, cuts=40, workers=8, queries=1000)
    assert bred(problem, 7) == bred(problem, 7)


@pytest.mark.parametrize("queries", [1, 10, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_bred_route_is_within_five_percent_of_the_optimum(seed: int, queries: int) -> None:
    problem = drawn_problem(seed, cuts=18, workers=4, queries=queries)
    route, optimum = bred(problem), optimal_route(problem)
    assert route is not None
    assert optimum is not None
    times = [problem.times(each).seconds(queries) for each in (route, optimum)]
    assert times[0] <= 1.05 * times[1]
