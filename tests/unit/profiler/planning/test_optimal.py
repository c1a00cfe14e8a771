import math
import random
from itertools import accumulate, combinations, islice, permutations
from operator import mul
from typing import Any

import highspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.drawn_routes import drawn_problem
from profiler.planning.enumeration import routes
from profiler.planning.optimal import optimal_route
from profiler.planning.options import OPTIMAL, staged_options, whole_options
from profiler.planning.plan import RoutePlan, pour
from profiler.planning.tables import MAX_SETS, Tables
from synergai.core.routes.links import Hop, Link, Links
from synergai.core.routes.planner import ROUTE_PLANNERS, run_search
from synergai.core.routes.problem import Route, RouteProblem, RouteWorker
from tests.chain_problems import problems

SEEDS = st.integers(0, 2**32 - 1)
PROBLEMS = problems(4, 4, 1, 2, 5, 30, 1000)


def seconds(problem: RouteProblem, route: Route | None) -> float:
    return math.inf if route is None else problem.times(route).seconds(problem.queries)


@given(SEEDS, st.sampled_from([1, 3, 100]))
def test_planner_is_never_worse_than_others_on_large_problems(seed: int, queries: int) -> None:
    problem = drawn_problem(seed, cuts=20, workers=5, queries=queries)
    found = seconds(problem, optimal_route(problem))
    for name in ("local", "neurosurgeon"):
        route, _ = run_search(ROUTE_PLANNERS.get(name)(problem), problem.times)
        assert found <= seconds(problem, route) * (1 + 1e-9)


@given(PROBLEMS, st.integers(1, 4))
def test_no_route_of_the_asked_number_of_legs_is_faster(problem: RouteProblem, legs: int) -> None:
    others = (route for route in routes(problem) if len(route.legs) == legs)
    expected = min((seconds(problem, each) for each in others), default=math.inf)
    assert seconds(problem, optimal_route(problem, legs)) == pytest.approx(expected)


def test_planner_is_registered_and_tries_no_route() -> None:
    problem = drawn_problem(0, cuts=4, workers=3, queries=10)
    search = ROUTE_PLANNERS.get("optimal")(problem)
    assert run_search(search, problem.times) == (optimal_route(problem), 0)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_mixed_integer_program_finds_nothing_faster(seed: int, queries: int) -> None:
    problem = drawn_problem(seed, cuts=5, workers=3, queries=queries)
    assert seconds(problem, optimal_route(problem)) == pytest.approx(
        least_seconds(problem), rel=1e-5
    )


def least_seconds(problem: RouteProblem) -> float:
    """Solve a problem with HiGHS, as a flow through legs and hops."""
    model = highspy.Highs()  # type: ignore[no-untyped-call]  # ships partial types
    model.setOptionValue("output_flag", False)
    model.setOptionValue("mip_rel_gap", 0.0)
    interval = model.addVariable(obj=problem.queries - 1)
    # Chosen legs and hops that begin (1) or end (-1) at a host and a place.
    flows: dict[tuple[str, int, str], list[Any]] = {}

    def choose(tail: tuple[str, int, str], head: tuple[str, int, str], taken: Hop) -> Any:
        chosen = model.addBinary(obj=taken.seconds)
        model.addConstr(interval >= taken.interval_s * chosen)
        flows.setdefault(tail, []).append(1 * chosen)
        flows.setdefault(head, []).append(-1 * chosen)
        return chosen

    end = problem.chain.end
    for worker in problem.workers:
        legs = [
            choose(
                (worker.name, first, "in"),
                (worker.name, last, "out"),
                Hop(worker.seconds[first][last], worker.seconds[first][last]),
            )
            for first, last in combinations(range(end + 1), 2)
            if problem.fits(worker, first, last)
        ]
        if legs:
            model.addConstr(model.qsum(legs) <= 1)
    names = [worker.name for worker in problem.workers]
    hops = [
        *((("source", 0, "out"), (name, 0, "in"), problem.source, name) for name in names),
        *(((name, end, "out"), ("source", end, "in"), name, problem.source) for name in names),
        *(
            ((source, place, "out"), (target, place, "in"), source, target)
            for source, target in permutations(names, 2)
            for place in range(1, end)
        ),
    ]
    for tail, head, source, target in hops:
        choose(tail, head, problem.links.hop(source, target, problem.chain.sizes[tail[1]]))
    supply = {("source", 0, "out"): 1, ("source", end, "in"): -1}
    for node, flow in flows.items():
        model.addConstr(model.qsum(flow) == supply.get(node, 0))
    model.minimize()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return math.inf
    return float(model.getInfo().objective_function_value)


def test_alike_workers_are_one_group() -> None:
    times = tuple(tuple(max(0.0, b - a) for b in range(6)) for a in range(6))
    base = drawn_problem(0, cuts=4, workers=1, queries=1000)
    alike = tuple(RouteWorker(f"w{number}", times) for number in range(20))
    problem = replace(base, workers=alike, links=Links({}, default=Link(1e12)), source="gateway")
    assert [len(group) for group in Tables(problem).groups] == [20]
    route = optimal_route(problem)
    assert route is not None
    assert {leg.worker for leg in route.legs} == {"w0", "w1", "w2", "w3", "w4"}


def test_workers_with_unlike_links_are_not_alike() -> None:
    base = drawn_problem(0, cuts=2, workers=1)
    [worker] = base.workers
    pair = (worker, replace(worker, name="w1"))
    links = Links({("w0", "gateway"): Link(1e6)}, default=Link(1e7))
    assert len(Tables(replace(base, workers=pair, links=links)).groups) == 2


def test_most_promising_of_many_workers_are_kept() -> None:
    problem = drawn_problem(1, cuts=6, workers=30)
    tables = Tables(problem)
    assert len(tables.counts) <= MAX_SETS
    route, _ = run_search(ROUTE_PLANNERS.get("local")(problem), problem.times)
    assert seconds(problem, optimal_route(problem)) <= seconds(problem, route)


# --- early exits ----------------------------------------------------------------------------


def with_exits(problem: RouteProblem, seed: int) -> RouteProblem:
    """Return a problem in which some queries leave at each cut, and results are small."""
    draw, chain = random.Random(seed), problem.chain
    stays = [draw.choice([1.0, draw.uniform(0.01, 1)]) for _ in chain.sizes[1:-1]]
    shares = (1.0, *accumulate(stays, mul), 1.0)
    return replace(problem, chain=replace(chain, sizes=(*chain.sizes[:-1], 100), shares=shares))


@settings(max_examples=200)
@given(PROBLEMS, st.none() | SEEDS)
def test_no_route_is_faster(problem: RouteProblem, exits: int | None) -> None:
    problem = problem if exits is None else with_exits(problem, exits)
    found = seconds(problem, optimal_route(problem))
    assert found == pytest.approx(
        min((seconds(problem, each) for each in routes(problem)), default=math.inf)
    )


@given(PROBLEMS)
def test_exits_at_which_all_queries_continue_change_no_plan(problem: RouteProblem) -> None:
    ones = replace(problem, chain=replace(problem.chain, shares=(1.0,) * len(problem.chain.sizes)))
    assert optimal_route(ones) == optimal_route(problem)
    for route in islice(routes(problem), 20):
        assert ones.times(route) == problem.times(route)


@given(PROBLEMS, SEEDS)
def test_plan_by_the_shares_is_no_slower_than_the_one_without(
    problem: RouteProblem, seed: int
) -> None:
    exits = with_exits(problem, seed)
    without = replace(exits, chain=replace(exits.chain, shares=()))
    chosen, former = (
        min(
            (each for each in options if each.name not in ("several routes", "shared stages")),
            key=lambda each: each.seconds,
            default=None,
        )
        for which in (exits, without)
        # Several routes side by side are not the best of all; stages are shared for the least
        # interval, and a few queries may take longer.
        for options in [[*whole_options(which), *staged_options(which, OPTIMAL)]]
    )
    if chosen is None or former is None:
        assert chosen is former
        return
    then = RoutePlan(pour(exits, [share.route for share in former.shares]))
    assert chosen.seconds <= then.seconds * (1 + 1e-9)
