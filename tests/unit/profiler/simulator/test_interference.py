import pytest
from msgspec.structs import replace

from benchmarks.route_searches import equally_linked
from profiler.simulator.pipelines.interference import (
    FORGET_S,
    FREE,
    IN_A_ROW,
    SECONDS,
    Clairvoyant,
    Planning,
    Slowdown,
    best_route,
    factor,
    served,
    slowed,
)
from profiler.simulator.pipelines.measured_chains import pipeline
from synergai.core.routes.problem import Route, RouteProblem


@pytest.fixture(scope="module")
def problem() -> RouteProblem:
    return replace(pipeline(), links=FREE)


def latencies(
    problem: RouteProblem, slowdowns: list[Slowdown], balancer: Clairvoyant, gap_s: float = 0.0
) -> list[float]:
    return [each.seconds for each in served(problem, slowdowns, balancer, gap_s)]


def show(balancer: Planning, problem: RouteProblem, now: float, factors: dict[str, float]) -> Route:
    """Let a balancer see some queries on its route while workers are slowed down."""
    for _ in range(IN_A_ROW):
        route = balancer.route(now)
        balancer.seen(now, route, slowed(problem, factors).times(route))
    return balancer.route(now)


def test_worst_of_several_slowdowns_counts_until_it_ends() -> None:
    slowdowns = [Slowdown("a", 1, 4, 2.0), Slowdown("a", 2, 3, 3.0), Slowdown("b", 0, 9, 4.0)]
    assert [factor(slowdowns, "a", now) for now in (0, 1, 2, 3, 4)] == [1, 2, 3, 2, 1]


def test_undisturbed_pipeline_answers_a_query_per_interval(problem: RouteProblem) -> None:
    times = problem.times(best_route(problem, {}))
    taken = latencies(problem, [], Clairvoyant(problem, ()))
    assert len(taken) / SECONDS == pytest.approx(1 / times.interval_s, rel=0.01)
    assert taken[0] == pytest.approx(times.latency_s)
    alone = latencies(problem, [], Clairvoyant(problem, ()), 2 * times.latency_s)
    assert alone == pytest.approx([times.latency_s] * len(alone))


def test_slow_down_lasts_for_what_begins_in_it(problem: RouteProblem) -> None:
    times = problem.times(best_route(problem, {}))
    gap_s = 2 * times.latency_s
    names = [worker.name for worker in problem.workers]
    slowdowns = [Slowdown(name, gap_s / 2, 1.5 * gap_s, 2.0) for name in names]
    taken = latencies(problem, slowdowns, Clairvoyant(problem, ()), gap_s)
    assert [taken[0], taken[2]] == pytest.approx([times.latency_s] * 2)
    assert taken[1] > 1.4 * times.latency_s


def test_planning_takes_segments_off_a_slow_worker_and_gives_them_back(
    problem: RouteProblem,
) -> None:
    balancer = Planning(problem)
    first = balancer.route(0.0)
    slow: dict[str, float] = {first.legs[0].worker: 2.0}
    changed = show(balancer, problem, 1.0, slow)
    assert changed == best_route(problem, slow) != first
    returned = show(balancer, problem, 2.0, {})
    assert problem.times(returned).interval_s == problem.times(first).interval_s


def test_slow_worker_without_a_stage_is_used_again_after_a_while() -> None:
    problem = equally_linked(0)
    balancer = Planning(problem)
    slow = balancer.route(0.0).legs[0].worker
    left = show(balancer, problem, 1.0, {slow: 100.0})
    assert slow not in [leg.worker for leg in left.legs]
    assert balancer.route(1.0 + FORGET_S) == left
    again = balancer.route(1.1 + FORGET_S)
    assert slow in [leg.worker for leg in again.legs]
