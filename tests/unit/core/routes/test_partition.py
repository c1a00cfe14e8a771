import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from profiler.planning.optimal import optimal_route
from profiler.planning.plan import RoutePlan, partition, pour
from synergai.core.routes.problem import Leg, Route, RouteProblem
from tests.chain_problems import HALF, WHOLE, halves, problems


@settings(max_examples=50)
@given(problems(6, 5, 1, 7, 300))
def test_plan_is_no_later_than_a_single_route_or_replicas(problem: RouteProblem) -> None:
    plan, single = partition(problem), optimal_route(problem)
    if single is None:
        assert plan is None
        return
    assert plan is not None
    workers = [leg.worker for share in plan.shares for leg in share.route.legs]
    assert len(workers) == len(set(workers))
    assert sum(share.queries for share in plan.shares) == problem.queries
    assert all(share.times == problem.times(share.route) for share in plan.shares)
    assert plan.seconds <= problem.times(single).seconds(problem.queries)
    alone = [optimal_route(replace(problem, workers=(each,))) for each in problem.workers]
    if replicas := [route for route in alone if route is not None]:
        assert plan.seconds <= RoutePlan(pour(problem, replicas)).seconds


def test_engine_that_fits_on_all_workers_is_not_split() -> None:
    plan = partition(halves(WHOLE, WHOLE, queries=10))
    assert plan is not None
    assert not plan.is_split
    assert {share.route.legs[0].worker: share.queries for share in plan.shares} == {
        "w0": 5,
        "w1": 5,
    }
    assert plan.seconds == pytest.approx(5 * 2 + 2 * 0.1)


def test_engine_that_fits_on_no_worker_is_split() -> None:
    plan = partition(halves(HALF, HALF, queries=10))
    assert plan is not None
    [share] = plan.shares
    assert (share.route, share.queries) == (Route((Leg("w0", 0, 1), Leg("w1", 1, 2))), 10)
    assert plan.seconds == pytest.approx(2.4 + 9)


def test_workers_that_hold_the_engine_are_replicas_and_others_a_chain() -> None:
    plan = partition(halves(HALF, WHOLE, HALF, queries=30))
    assert plan is not None
    shares = {tuple(leg.worker for leg in share.route.legs): share.queries for share in plan.shares}
    assert set(shares) in ({("w1",), ("w0", "w2")}, {("w1",), ("w2", "w0")})
    assert shares["w1",] == 10


def test_workers_beyond_those_of_a_route_are_replicas() -> None:
    plan = partition(halves(*[WHOLE + number for number in range(12)], queries=24))
    assert plan is not None
    assert [share.queries for share in plan.shares] == [2] * 12


def test_impossible_engine_has_no_plan() -> None:
    assert partition(halves(queries=3)) is None
    assert partition(halves(HALF, queries=3)) is None
