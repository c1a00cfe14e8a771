"""Water-filling, and plan search based on it."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from synergai.core.scheduling.policies.malleable.planner import Planner, Problem, Weights
from synergai.core.scheduling.rules.active_jobs import water_fill

ready_times = st.floats(0.0, 100.0)
rates = st.floats(0.1, 50.0)


def make_problem(
    queries: list[float],
    deadlines: list[float],
    speeds: list[float],
    setup: float = 0.0,
    ready: list[float] | None = None,
) -> Problem:
    shape = (len(queries), len(speeds))
    return Problem(
        queries=np.array(queries),
        deadlines=np.array(deadlines),
        importance=np.ones(len(queries)),
        ready=np.array(ready or [0.0] * len(speeds)),
        setup=np.full(shape, setup),
        rates=np.broadcast_to(np.array(speeds), shape).copy(),
        saved=np.zeros(shape),
        not_before=np.zeros(len(queries)),
        typical_s=10.0,
    )


def make_planner(problem: Problem) -> Planner:
    return Planner(problem, Weights(), effort=12)


@given(st.floats(1.0, 5000.0), st.lists(st.tuples(ready_times, rates), min_size=1, max_size=6))
def test_water_fill_conserves_work_and_ends_simultaneously(
    queries: float, workers: list[tuple[float, float]]
) -> None:
    ready = sorted((at, number) for number, (at, _) in enumerate(workers))
    speeds = [rate for _, rate in workers]
    until = water_fill(queries, ready, speeds)
    done = sum(max(0.0, until - at) * speeds[number] for at, number in ready)
    assert math.isclose(done, queries, rel_tol=1e-9)


@given(
    st.lists(st.floats(1.0, 500.0), min_size=1, max_size=5),
    st.lists(st.tuples(ready_times, rates), min_size=1, max_size=4),
    st.floats(0.0, 20.0),
)
def test_vectorised_plan_costs_agree_with_a_single_plan(
    queries: list[float], workers: list[tuple[float, float]], setup: float
) -> None:
    deadlines = [60.0 + number for number in range(len(queries))]
    problem = make_problem(
        queries, deadlines, [rate for _, rate in workers], setup, [at for at, _ in workers]
    )
    planner = make_planner(problem)
    plan = planner.search([list(range(len(queries)))])
    allocations = planner.allocations(plan)
    for job, wanted in enumerate(queries):
        assert math.isclose(
            sum(a.queries for a in allocations if a.job == job), wanted, rel_tol=1e-6
        )
    again = planner._costs(plan.order[None, :], plan.allowed[None, :, :])
    assert math.isclose(float(again[0]), plan.cost, rel_tol=1e-9)


def test_tight_job_goes_before_a_loose_one_from_any_starting_order() -> None:
    problem = make_problem([100.0, 100.0, 100.0], [500.0, 400.0, 12.0], [10.0])
    plan = make_planner(problem).search([[0, 1, 2]])
    assert plan.order.tolist()[0] == 2


def test_worker_whose_setup_takes_longer_than_the_job_is_not_used() -> None:
    problem = make_problem([100.0], [50.0], [10.0, 10.0])
    problem.setup[0, 1] = 30.0
    planner = make_planner(problem)
    allocations = planner.allocations(planner.search([[0]]))
    assert [(a.worker, a.queries) for a in allocations] == [(0, 100.0)]


def test_saved_setup_counts_only_for_the_workers_first_job() -> None:
    problem = make_problem([100.0, 100.0], [20.0, 90.0], [10.0], setup=5.0)
    problem.saved[0, 0] = 5.0
    planner = make_planner(problem)
    allocations = planner.allocations(planner.search([[0, 1]]))
    assert [(a.job, a.begins) for a in allocations] == [
        (0, 0.0),
        (1, 10.0),
    ]
    first_then_other = planner._costs(np.array([[0, 1]]), np.ones((1, 2, 1), dtype=np.bool_))
    other_first = planner._costs(np.array([[1, 0]]), np.ones((1, 2, 1), dtype=np.bool_))
    assert first_then_other[0] < other_first[0]
