"""Stages that several workers share."""

import math
from itertools import combinations, pairwise, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.drawn_routes import drawn_problem
from profiler.planning.options import choose, staged_options, whole_options
from profiler.planning.plan import RoutePlan, pour
from profiler.planning.sharing import MAX_STAGES, shared_routes
from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT, RouteProblem
from tests.chain_problems import HALF, halves

SEEDS = st.integers(0, 2**32 - 1)


def interval_s(problem: RouteProblem, cuts: tuple[int, ...], stages: tuple[int, ...]) -> float:
    """Return the interval of stages, each on the workers that have its number."""
    rates = [0.0] * (len(cuts) + 1)
    ends = list(pairwise((0, *cuts, problem.chain.end)))
    for worker, stage in zip(problem.workers, stages, strict=True):
        first, last = ends[stage]
        if problem.fits(worker, first, last):
            share = problem.chain.shares[first] if problem.chain.shares else 1.0
            rates[stage] += 1 / (share * worker.seconds[first][last])
    return 1 / min(rates) if min(rates) else math.inf


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 4), st.integers(2, 4), st.booleans())
@example(2828, 3, 4, False)  # two workers in each of two stages
def test_no_other_workers_of_any_stages_keep_a_shorter_interval(
    seed: int, cuts: int, workers: int, exits: bool
) -> None:
    drawn = drawn_problem(seed, cuts=cuts, workers=workers, queries=10_000)
    shares = (*(0.8**position for position in range(cuts + 1)), 1.0) if exits else ()
    chain = replace(drawn.chain, shares=shares)
    problem = replace(drawn, chain=chain, links=Links({}, default=Link(math.inf)))
    found = {
        len({leg[1:] for route in routes for leg in route.legs}): RoutePlan(pour(problem, routes))
        for routes in shared_routes(problem)
    }
    for count in range(2, min(MAX_STAGES, cuts + 1, workers) + 1):
        expected = min(
            interval_s(problem, chosen, stages)
            for chosen in combinations(range(1, cuts + 1), count - 1)
            for stages in product(range(count), repeat=workers)
        )
        if count in found:
            assert found[count].interval_s == pytest.approx(expected)
        else:
            assert expected == math.inf


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 5), st.integers(2, 5))
def test_each_worker_has_one_stage_and_no_more_queries_than_it_manages(
    seed: int, cuts: int, workers: int
) -> None:
    problem = drawn_problem(seed, cuts=cuts, workers=workers, queries=100)
    for routes in shared_routes(problem):
        plan = RoutePlan(pour(problem, routes))
        assert sum(share.queries for share in plan.shares) == problem.queries
        legs = {leg for share in plan.shares for leg in share.route.legs}
        assert len({leg.worker for leg in legs}) == len(legs)
        busy = dict.fromkeys(legs, 0.0)
        for share in plan.shares:
            for leg, seconds in zip(share.route.legs, share.times.stages, strict=True):
                busy[leg] += seconds / share.interval_s
        assert max(busy.values()) <= 1 + 1e-6


def uneven(*budgets: float) -> RouteProblem:
    """Return a problem whose first stage takes twice as long as the second one."""
    return halves(*budgets, queries=1000, first_s=2.0, latency_s=0.0)


def test_slowest_stage_gets_the_worker_that_is_left() -> None:
    problem = uneven(HALF, HALF, HALF)
    best = choose(problem, staged_options(problem, "optimal"), 0.0)
    assert best.name == "shared stages"
    assert best.interval_s == pytest.approx(1.0)
    legs = {leg for share in best.shares for leg in share.route.legs}
    assert sorted(leg[1:] for leg in legs) == [(0, 1), (0, 1), (1, 2)]
    assert sum(share.queries for share in best.shares) == 1000


def test_no_more_workers_share_a_stage_than_it_needs() -> None:
    problem = uneven(*[HALF] * 3, HOST_BYTES + SESSION_PER_WEIGHT * 49)
    [routes] = shared_routes(problem)
    assert len({leg for route in routes for leg in route.legs}) == 3


def test_workers_that_hold_the_engine_share_no_stages() -> None:
    problem = uneven(*[math.inf] * 3)
    options = [*whole_options(problem), *staged_options(problem, "optimal")]
    assert choose(problem, options, 0.02).name == "replicas"
