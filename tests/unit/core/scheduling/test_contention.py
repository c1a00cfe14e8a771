"""Workers of one machine slow each other down; what runs beside what is learned and planned for."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import Assignment, AssignmentEnded, QueriesDone, Stop
from synergai.core.scheduling.policies.malleable.contended import (
    Contended,
    Running,
    choose_plan,
    play,
)
from synergai.core.scheduling.policies.malleable.planner import Planner, Problem, Weights, plan_cost
from synergai.core.scheduling.state import estimate
from synergai.core.scheduling.state.estimate import MAX_SLOWDOWN, Contention
from synergai.core.scheduling.state.workers import WorkerRecord
from synergai.domain import EngineName, Outcome
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_worker

QPS = 100.0
A, B = EngineName("a"), EngineName("b")


def places(count: int = 2, **settings: object) -> SchedulerCore:
    return make_core(
        [new_entry(engine, "x86", QPS) for engine in ("a", "b")],
        [new_worker(f"box.{n}", "x86", ["a", "b"], machine="box") for n in range(1, count + 1)],
        **settings,
    )


def slowdown(core: SchedulerCore, engine: EngineName, other: EngineName) -> float:
    worker = next(iter(core.state.workers.values()))
    return core.state.contention.slowdown(worker.worker.worker_class, engine, (other,))


def run_side_by_side(core: SchedulerCore, factor: float, reports: int = 20) -> float:
    """Run a job of each engine on a place of its own, each slowed down; return the time."""
    running: list[Assignment] = []
    now = 0.0
    for number, engine in enumerate((A, B)):
        running += dispatched(core.handle(new_job(f"job-{number}", engine, 1000), now))
    assert [each.engine for each in running] == [A, B]
    assert len({each.worker_id for each in running}) == 2
    for report in range(1, reports + 1):
        now = 0.1 * report * factor
        for each in running:
            core.handle(QueriesDone(each.id, round(10 * report)), now)
    return now


def test_slow_down_beside_another_engine_is_learned_and_the_pace_is_kept() -> None:
    core = places(policy="fifo")
    run_side_by_side(core, 1.8)
    assert slowdown(core, A, B) == pytest.approx(1.8, rel=0.05)
    assert slowdown(core, B, A) == pytest.approx(1.8, rel=0.05)
    assert slowdown(core, A, A) == 1.0
    assert not any(worker.observed.pace for worker in core.state.workers.values())


def test_pace_is_learned_beside_nothing() -> None:
    core = places(policy="fifo")
    [alone] = dispatched(core.handle(new_job("job", "a", 1000), 0.0))
    for report in range(1, 40):
        core.handle(QueriesDone(alone.id, 10 * report), 0.15 * report)
    pace = core.state.workers[alone.worker_id].observed.pace[A]
    assert pace > 1.1  # a single assignment moves it only so far
    assert slowdown(core, A, B) == 1.0


def test_estimates_count_what_runs_beside_them_now() -> None:
    core = places(policy="fifo")
    now = run_side_by_side(core, 2.0)
    expected_s = core.expected_answer_s(new_job("new", "a", 1, now).job, now)
    [first, second] = core.state.workers.values()
    assert first.head is not None
    record = first.head.job
    estimate = core.state.best_estimate(record, first)
    assert estimate is not None
    alone_s = core.state.alone_query_s(record, first, estimate)
    assert core.state.per_query_s(record, first, estimate) == pytest.approx(2 * alone_s, rel=0.1)
    assert expected_s is not None
    assert second.head is not None
    end(core, second.head.assignment, now)
    assert core.state.per_query_s(record, first, estimate) == pytest.approx(alone_s)


def test_workers_of_other_machines_are_no_company() -> None:
    core = make_core(
        [new_entry(engine, "x86", QPS) for engine in ("a", "b")],
        [new_worker(name, "x86", ["a", "b"], machine=name) for name in ("one", "two")],
        policy="fifo",
    )
    run_side_by_side(core, 1.8)
    assert slowdown(core, A, B) == 1.0
    assert all(worker.observed.pace for worker in core.state.workers.values())


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=30))
def test_slow_downs_are_believable(ratios: list[float]) -> None:
    worker = WorkerRecord(new_worker("box.1", "x86", ["a"]), 0, {A}, set())
    contention = Contention()
    for ratio in ratios:
        contention.observe(worker.worker.worker_class, A, (A, B), ratio, 1.0)
        assert 1.0 <= contention.slowdown(worker.worker.worker_class, A, (A, B)) <= MAX_SLOWDOWN**2


# --- plans ----------------------------------------------------------------------------------


def make_problem(queries: list[float], deadlines: list[float], workers: int = 2) -> Problem:
    shape = len(queries), workers
    return Problem(
        queries=np.array(queries),
        deadlines=np.array(deadlines),
        importance=np.ones(len(queries)),
        ready=np.zeros(workers),
        setup=np.zeros(shape),
        rates=np.ones(shape),
        saved=np.zeros(shape),
        not_before=np.zeros(len(queries)),
        typical_s=float(np.mean(queries)),
    )


def contended(
    problem: Problem, slowdowns: list[list[float]], running: dict[int, Running] | None = None
) -> Contended:
    return Contended(
        slowdowns=np.array(slowdowns),
        mates=[[1], [0]],
        running=running or {},
        deadlines=problem.deadlines,
        importance=problem.importance,
        not_before=problem.not_before,
    )


def test_jobs_at_once_and_one_after_the_other_are_played_through() -> None:
    problem = make_problem([10.0, 10.0], [math.inf] * 2)
    beside = contended(problem, [[2.0, 1.25], [1.0, 1.5]])
    completes, effort_s, _ = play(problem, beside, (0, 1), [[True, True], [True, True]])
    assert completes.tolist() == pytest.approx([10.0, 17.5])  # 10/(2/2), and 10/(2/1.5) after it
    assert effort_s == pytest.approx(35.0)
    completes, _, used = play(problem, beside, (0, 1), [[True, False], [False, True]])
    # The second one ends after 10 s; then both places run the first one, at half the pace each.
    assert completes.tolist() == pytest.approx([10 + (10 - 10 / 1.25), 10.0])
    assert used == [[True, False], [False, True]]  # a second place would not make the first faster


@given(st.integers(0, 2**32 - 1))
def test_jobs_of_days_are_played_through_to_their_ends(seed: int) -> None:
    generator = np.random.default_rng(seed)
    problem = make_problem(
        generator.integers(10**7, 10**9, 2).astype(float).tolist(), [math.inf] * 2
    )
    problem = replace(problem, rates=generator.uniform(200, 5000, (2, 2)))
    beside = contended(problem, generator.uniform(1, 2, (2, 2)).tolist())
    completes, _, _ = play(problem, beside, (0, 1), [[True, True], [True, True]])
    fastest_s = problem.queries / problem.rates.sum(axis=1)
    assert (completes >= fastest_s * (1 - 1e-9)).all()
    assert (completes < math.inf).all()


def test_what_goes_on_running_slows_down_and_is_slowed_down() -> None:
    problem = make_problem([10.0], [math.inf])
    beside = contended(problem, [[1.5, 2.0], [1.25, 1.0]], {1: Running(1, 8.0)})
    completes, effort_s, _ = play(problem, beside, (0,), [[True, False]])
    # Until 10 s, half the pace; then the second worker helps, at 1 / 1.5 of the pace each.
    assert completes.tolist() == pytest.approx([10.0 + 5.0 * 1.5 / 2, 10.0])
    assert effort_s == pytest.approx(2 * completes[0])


@given(
    st.lists(st.floats(1.0, 100.0), min_size=2, max_size=2),
    st.lists(st.floats(1.0, 3.0), min_size=4, max_size=4),
    st.lists(st.one_of(st.floats(1.0, 200.0), st.just(math.inf)), min_size=2, max_size=2),
)
def test_the_better_of_at_once_and_one_after_the_other_is_chosen(
    queries: list[float], slowdowns: list[float], deadlines: list[float]
) -> None:
    problem, weights = make_problem(queries, deadlines), Weights()
    beside = contended(problem, [slowdowns[:2], slowdowns[2:]])
    starts = [[0, 1], [1, 0]]
    plan = Planner(problem, weights, 15).search(starts)
    chosen = choose_plan(problem, beside, weights, plan, starts)
    both, apart = [[True, True]] * 2, [[True, False], [False, True]]
    for order in permutations(range(2)):
        for allowed in (both, apart):
            completes, effort_s, _ = play(problem, beside, order, allowed)
            cost = plan_cost(
                completes, problem.deadlines, problem.importance, weights, problem.typical_s
            )
            cost += weights.effort * effort_s / problem.typical_s
            assert chosen.cost <= cost + 1e-6


@pytest.mark.parametrize(
    ("beside_itself", "beside_other", "at_once"), [(2.4, 1.05, True), (1.05, 2.4, False)]
)
def test_what_slows_itself_down_most_runs_beside_another_engine(
    beside_itself: float, beside_other: float, *, at_once: bool
) -> None:
    core = places()
    contention = core.state.contention
    worker = next(iter(core.state.workers.values()))
    for engine, other in ((A, B), (B, A)):
        contention.observe(worker.worker.worker_class, engine, (engine,), 1e3 * beside_itself, 1e3)
        contention.observe(worker.worker.worker_class, engine, (other,), 1e3 * beside_other, 1e3)
    running: dict[str, str] = {}
    for each in dispatched(core.handle(new_job("first", "a", 2000), 0.0)):
        running[each.worker_id] = each.engine
    commands = core.handle(new_job("second", "b", 2000), 0.01)
    for stop in commands:
        if isinstance(stop, Stop):
            ended = AssignmentEnded(stop.assignment_id, 1, Outcome.STOPPED)
            commands = [*commands, *core.handle(ended, 0.02)]
    for each in dispatched(commands):
        running[each.worker_id] = each.engine
    assert (len(set(running.values())) == 2) is at_once


def test_pairs_that_were_seen_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "MOST_PAIRS", 2)
    worker = next(iter(places().state.workers.values()))
    found, others = Contention(), [EngineName(name) for name in ("x", "y", "z")]
    for other in (*others[:2], *others[::2]):
        found.observe(worker.worker.worker_class, A, (other,), seconds=1.0, alone_s=0.5)
    slowed = [found.slowdown(worker.worker.worker_class, A, (other,)) > 1.0 for other in others]
    assert slowed == [True, False, True]
